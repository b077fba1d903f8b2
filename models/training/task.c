#include "models/training/task.h"

#include <stdio.h>
#include <string.h>

static const task_kind *const tasks[] = {&sh_task_copy};
enum { TASKS = sizeof tasks / sizeof *tasks };

shoal_status sh_task_find(shoal_context *context, const char *name,
                          const task_kind **task) {
    char names[128] = "";
    for (int i = 0; i < TASKS; i++) {
        if (strcmp(tasks[i]->name, name) == 0) {
            *task = tasks[i];
            return SHOAL_OK;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                 tasks[i]->name);
    }
    return sh_fail(context, SHOAL_INVALID, "there is no task \"%.40s\"; tasks: %s", name,
                   names);
}
