#!/bin/bash
# The transport between 1 to 7 ranks: transport.sh PROGRAM
. "$(dirname "$0")/../report.sh"
. "$(dirname "$0")/launcher.sh"
for count in 1 2 3 4 7; do
    check "$count ranks" launch $count "$1"
done
finish
