#include "command.h"
