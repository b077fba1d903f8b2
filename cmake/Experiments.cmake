# Converts the tables of lab/experiments to a C file, with the commit that is built. A
# script:
#     cmake -D SOURCE=... -D OUTPUT=... -D NAMES="a;b" -P Experiments.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(text "/* Made by cmake/Experiments.cmake. */\n#include \"repro.h\"\n\n")
string(APPEND text "const char repro_commit[] = \"${commit}\";\n")
string(APPEND text "const repro_builtin repro_builtins[] = {\n")
string(REPLACE "," ";" NAMES "${NAMES}")
foreach(name ${NAMES})
    file(READ ${SOURCE}/lab/experiments/${name}.json json)
    string(REPLACE "\\" "\\\\" json "${json}")
    string(REPLACE "\"" "\\\"" json "${json}")
    string(REPLACE "\n" "\\n\"\n     \"" json "${json}")
    string(APPEND text "    {\"${name}\",\n     \"${json}\"},\n")
endforeach()
string(APPEND text "    {0}};\n")
set(had "")
if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} had)
endif()
if(NOT had STREQUAL text)
    file(WRITE ${OUTPUT} "${text}")
endif()
