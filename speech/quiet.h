/* Calls into libraries that write to standard error, which is not theirs to use. */
#ifndef SHOAL_SPEECH_QUIET_H
#define SHOAL_SPEECH_QUIET_H

/* Runs the function and waits for it; meanwhile what it writes to standard error is lost,
   and nobody else's. Where the system cannot do that, it is only run. */
void sh_run_quietly(void (*run)(void *argument), void *argument);

#endif
