/* Trains a recogniser on a data folder in Kaldi's format, and evaluates it with another
   kind of attention than the one used in training.

       train_speech DATA RUN [FIELD=VALUE ...]

   DATA has the folders train, dev and test. RUN holds checkpoint, best model and log:
   after an interruption, the same command continues from there, with the same bits as
   an uninterrupted run. Any field of `shoal train speech DATA --print-config` may be
   set, such as labels=phones. */
#include <shoal_train.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int number) {
    interrupted = number;
}

static int is_cancelled(void *user) {
    (void)user;
    return interrupted != 0;
}

static void show(void *user, const shoal_train_progress *at) {
    (void)user;
    if (at->event == SHOAL_TRAIN_EVENT_VALIDATION)
        printf("step %5d  loss %.4f  error rate %5.1f %%\n", (int)at->done,
               at->validation->loss, 100 - 100 * at->validation->accuracy);
}

static void warn(void *user, const char *text) {
    (void)user;
    fprintf(stderr, "%s\n", text);
}

/* Splits "FIELD=VALUE" in place. */
static int split(char *text, shoal_setting *setting) {
    char *value = strchr(text, '=');
    if (!value)
        return 0;
    *value = 0;
    *setting = (shoal_setting){text, value + 1};
    return 1;
}

/* The best model with the kind used in training, and with one in linear time. */
static shoal_status evaluate(shoal_context *context, const char *run, const char *test,
                             const shoal_speech_train_config *config) {
    shoal_evaluation_options options = shoal_evaluation_options_defaults();
    shoal_evaluation *evaluation = NULL;
    shoal_evaluation_row row;
    shoal_evaluation_score score;
    shoal_attention kinds[2] = {config->train.model.attention};
    shoal_status status = shoal_attention_parse(context, "i-clustered-8", &kinds[1]);
    options.attention = kinds;
    options.kinds = 2;
    options.data = test;
    options.cache = config->cache;
    if (status == SHOAL_OK)
        status = shoal_evaluation_create(context, run, &options, &evaluation);
    for (int i = 0; status == SHOAL_OK &&
                    shoal_evaluation_row_get(evaluation, i, &row) == SHOAL_OK &&
                    shoal_evaluation_score_get(evaluation, i, 0, &score) == SHOAL_OK;
         i++)
        printf("%-24s error rate %5.1f %%\n", row.kind, score.value);
    shoal_evaluation_destroy(evaluation);
    return status;
}

int main(int count, char **arguments) {
    enum { MOST = 64 };
    const shoal_train_task *task = shoal_task_find("speech");
    shoal_speech_train_config config = shoal_speech_train_config_defaults(NULL);
    shoal_run_options options = shoal_run_options_defaults();
    shoal_run_result result;
    shoal_context *context;
    shoal_setting settings[MOST];
    char cache[4096], test[4096];
    if (count < 3 || count - 3 > MOST || !task)
        return 2;
    if (shoal_context_create(NULL, &context) != SHOAL_OK)
        return 1;
    snprintf(cache, sizeof cache, "%s/cache", arguments[1]);
    snprintf(test, sizeof test, "%s/test", arguments[1]);
    config.folder = arguments[1];
    config.cache = cache;
    options.folder = arguments[2];
    options.resume = 1;
    options.save_seconds = 10;
    options.settings = settings; /* must be the same when a run continues */
    options.setting_count = count - 3;
    options.callbacks = (shoal_train_callbacks){.progress = show,
                                                .message = warn,
                                                .cancelled = is_cancelled};
    shoal_status status = SHOAL_OK;
    for (int i = 3; i < count && status == SHOAL_OK; i++)
        status = split(arguments[i], &settings[i - 3])
                     ? shoal_config_set(context, task, &config, settings[i - 3].name,
                                        settings[i - 3].value)
                     : shoal_context_fail(context, SHOAL_INVALID,
                                          "%s: it must be FIELD=VALUE", arguments[i]);
    signal(SIGINT, interrupt); /* leaves a run that can be resumed */
    if (status == SHOAL_OK)
        status = shoal_train_run(context, task, &config, &options, &result);
    if (status == SHOAL_OK)
        status = evaluate(context, arguments[2], test, &config);
    if (status != SHOAL_OK)
        fprintf(stderr, "%s\n", shoal_context_message(context));
    shoal_context_destroy(context);
    return status != SHOAL_OK;
}
