#include "speech/whisper/search.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

/* ---- Rules ---------------------------------------------------------------------- */

static void forbid(float *logits, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        logits[i] = -INFINITY;
}

static void forbid_listed(float *logits, int32_t vocabulary, const int32_t *listed,
                          int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (listed[i] >= 0 && listed[i] < vocabulary)
            logits[listed[i]] = -INFINITY;
}

double sh_log_sum_exp(const float *logits, int count) {
    float largest = -INFINITY;
    for (int i = 0; i < count; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    if (isinf(largest))
        return (double)largest;
    double total = 0;
    /* A float sum of at most 1024 numbers loses little; the blocks are added as
       doubles. */
    for (int first = 0; first < count; first += 1024) {
        const int end = (int)min(first + 1024, count);
        float sums[8] = {0};
        for (int i = first; i < end; i++)
            if (logits[i] > largest - 40)
                sums[i % 8] += expf(logits[i] - largest);
        for (int j = 0; j < 8; j++)
            total += (double)sums[j];
    }
    return (double)largest + log(total);
}

void sh_rules_apply(const decode_rules *rules, const int32_t *sampled, int count,
                    float *logits) {
    /* Whether a symbol that will be left out is likelier than the end. */
    bool symbol_wins = false;
    for (int32_t i = 0; i < rules->never_count && !rules->published; i++)
        symbol_wins = symbol_wins ||
                      (rules->never[i] >= 0 && rules->never[i] < rules->end &&
                       logits[rules->never[i]] > logits[rules->end]);
    if (symbol_wins)
        forbid(logits, rules->end, (int64_t)rules->end + 1);
    if (count == 0)
        forbid_listed(logits, rules->vocabulary, rules->not_first,
                      rules->not_first_count);
    forbid_listed(logits, rules->vocabulary, rules->never, rules->never_count);
    if (!rules->timestamps)
        return;
    forbid(logits, rules->no_timestamps, (int64_t)rules->no_timestamps + 1);
    /* Times come in pairs, an end and the next beginning: after one that stands alone
       only its partner or the end of the text may come, after two only words. */
    const int32_t first = rules->first_timestamp;
    const bool last_is_time = count >= 1 && sampled[count - 1] >= first;
    const bool one_before_is_time = count < 2 || sampled[count - 2] >= first;
    if (last_is_time && one_before_is_time)
        forbid(logits, first, rules->vocabulary);
    else if (last_is_time)
        forbid(logits, 0, rules->end);
    /* Time goes forward; only the partner of a lone time may repeat it. */
    int latest = count - 1;
    while (latest >= 0 && sampled[latest] < first)
        latest--;
    if (latest >= 0)
        forbid(logits, first,
               (int64_t)sampled[latest] + !(last_is_time && !one_before_is_time));
    if (count == 0) { /* begins with a time */
        forbid(logits, 0, first);
        if (rules->latest_beginning >= 0)
            forbid(logits, (int64_t)rules->latest_beginning + 1, rules->vocabulary);
    }
    /* Times go first where they are likelier, all together, than the best word. The
       softmax's normaliser is the same on both sides, so logits are compared as they
       are. */
    const double times = sh_log_sum_exp(logits + first, rules->vocabulary - first);
    float best_word = -INFINITY;
    for (int32_t i = 0; i < first; i++)
        best_word = logits[i] > best_word ? logits[i] : best_word;
    if (times > (double)best_word)
        forbid(logits, 0, first);
}

/* ---- Memory --------------------------------------------------------------------- */

/* B texts, P text positions, V vocabulary. */
typedef struct {
    int32_t *tokens; /* [P] */
    float *logprobs; /* [P] */
    int count;
    double sum; /* of log-probabilities */
    bool ended;
} hypothesis;

typedef struct {
    double sum;
    float logprob;
    int32_t token, parent; /* parent: which of the job's texts */
} candidate;

/* One search. Its i-th text has the decoder's text texts[i], whose number is also that
   of its hypotheses. */
typedef struct {
    bool used, ended;
    search_task task;
    int32_t *texts; /* [task.beams] */
    int live, done; /* texts that go on (beams), hypotheses that are done */
    int step;
    int32_t prompt_row, start_row; /* of the run in which it began */
    double no_speech;
    const hypothesis *best;
} search_job;

/* A row of logits: of one text, or at first of all the texts of a job. */
typedef struct {
    int32_t job, text; /* text: which of the job's */
    float largest;
    int64_t who;
    double sum; /* log of the sum of exp */
    bool damaged;
} logit_row;

struct search {
    shoal_context *context;
    decoder *network;
    int texts, positions, vocabulary; /* B, P, V */
    float *logits;                    /* [B][V] */
    float *drawing;                   /* [threads][V] */
    hypothesis *live, *next, *done;   /* [B] each */
    candidate *candidates;            /* [B][B + 1] */
    candidate *merged;                /* [B * (B + 1)] */
    int *found;                       /* [B]: candidates of each text */
    int32_t *pending;                 /* [B]: the row of a text in the coming run */
    int32_t *parents, *row_list;      /* [B] */
    int32_t *free_texts;              /* [B] */
    int free_count;
    search_job *jobs; /* [B] */
    logit_row *rows;  /* [B] */
    int row_count;
};

static void place_hypotheses(block_layout *block, int count, int positions,
                             hypothesis **list) {
    *list = sh_reserve(block, count, sizeof **list);
    int32_t *ids = sh_reserve(block, sh_mul_checked(count, positions), sizeof *ids);
    float *logprobs =
        sh_reserve(block, sh_mul_checked(count, positions), sizeof *logprobs);
    for (int i = 0; i < count && *list && ids && logprobs; i++) {
        (*list)[i].tokens = ids + (int64_t)i * positions;
        (*list)[i].logprobs = logprobs + (int64_t)i * positions;
    }
}

static void place(void *argument, block_layout *block) {
    search *s = argument;
    sh_reserve(block, 1, sizeof *s);
    s->logits = reserve_floats(block, s->texts, s->vocabulary);
    s->drawing = reserve_floats(block, s->context->threads, s->vocabulary);
    place_hypotheses(block, s->texts, s->positions, &s->live);
    place_hypotheses(block, s->texts, s->positions, &s->next);
    place_hypotheses(block, s->texts, s->positions, &s->done);
    const int64_t texts = s->texts;
    const int64_t all = sh_mul_checked(texts, texts + 1);
    s->candidates = sh_reserve(block, all, sizeof *s->candidates);
    s->merged = sh_reserve(block, all, sizeof *s->merged);
    s->found = sh_reserve(block, texts, sizeof *s->found);
    s->pending = sh_reserve(block, texts, sizeof *s->pending);
    s->parents = sh_reserve(block, texts, sizeof *s->parents);
    s->row_list = sh_reserve(block, texts, sizeof *s->row_list);
    s->free_texts = sh_reserve(block, texts, sizeof *s->free_texts);
    s->rows = sh_reserve(block, texts, sizeof *s->rows);
    s->jobs = sh_reserve(block, texts, sizeof *s->jobs);
    int32_t *own = sh_reserve(block, sh_mul_checked(texts, texts), sizeof *own);
    for (int i = 0; i < s->texts && s->jobs && own; i++)
        s->jobs[i] = (search_job){.texts = own + (int64_t)i * s->texts};
}

shoal_status sh_search_create(shoal_context *context, decoder *network, search **made) {
    const whisper_sizes *sizes = sh_decoder_sizes(network);
    search sized = {.context = context,
                    .network = network,
                    .texts = sh_decoder_limits(network)->texts,
                    .positions = sizes->text_positions,
                    .vocabulary = sizes->vocabulary};
    search *s = sh_allocate_parts(context, place, &sized, NULL);
    *made = s;
    if (!s)
        return SHOAL_NO_MEMORY;
    *s = sized;
    sh_search_drop_all(s);
    return SHOAL_OK;
}

void sh_search_destroy(search *s) {
    if (s)
        sh_release(s->context, s);
}

static float *logits_of(const search *s, int64_t row) {
    return s->logits + row * s->vocabulary;
}

static void copy_hypothesis(hypothesis *to, const hypothesis *from) {
    memcpy(to->tokens, from->tokens, (size_t)from->count * sizeof *to->tokens);
    memcpy(to->logprobs, from->logprobs, (size_t)from->count * sizeof *to->logprobs);
    *to = (hypothesis){to->tokens, to->logprobs, from->count, from->sum, from->ended};
}

static void lengthen(hypothesis *h, int32_t token, float logprob) {
    h->tokens[h->count] = token;
    h->logprobs[h->count++] = logprob;
}

/* Mean log-probability of the words; how texts of different lengths are ranked. */
static double rank_of(const hypothesis *h) {
    return h->sum / (h->count > 0 ? h->count : 1);
}

/* Of the first `count` of a job's hypotheses in a list. */
static const hypothesis *best_of(const search_job *job, const hypothesis *list,
                                 int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (rank_of(&list[job->texts[i]]) > rank_of(&list[job->texts[best]]))
            best = i;
    return &list[job->texts[best]];
}

/* Beams part and die out; samples, and a single text, are their own. */
static bool has_beams(const search_job *job) {
    return job->task.temperature <= 0 && job->task.beams > 1;
}

/* ---- Beginning and ending ------------------------------------------------------- */

void sh_search_drop_all(search *s) {
    sh_decoder_forget(s->network);
    s->free_count = s->texts;
    for (int i = 0; i < s->texts; i++) {
        s->free_texts[i] = s->texts - 1 - i;
        s->jobs[i].used = false;
    }
}

void sh_search_drop(search *s, int number) {
    search_job *job = &s->jobs[number];
    for (int i = job->task.beams - 1; i >= 0; i--)
        s->free_texts[s->free_count++] = job->texts[i];
    job->used = false;
}

bool sh_search_ended(const search *s, int number, search_result *result) {
    const search_job *job = &s->jobs[number];
    if (!job->ended)
        return false;
    *result = (search_result){.tokens = job->best->tokens,
                              .logprobs = job->best->logprobs,
                              .count = job->best->count,
                              .mean_logprob = job->best->sum / (job->best->count + 1),
                              .no_speech = job->no_speech};
    return true;
}

int sh_search_begin(search *s, const search_task *task) {
    /* The task as it can be done. */
    search_task wanted = *task;
    const int64_t room = min(s->positions, s->positions - task->prompt_count + 1);
    wanted.longest = (int)min(wanted.longest, room);
    wanted.beams = (int)min(wanted.beams, s->texts);
    wanted.prompt = NULL;
    if (wanted.beams > s->free_count ||
        task->prompt_count > sh_decoder_free_rows(s->network))
        return -1;
    int number = 0;
    while (s->jobs[number].used)
        number++;
    search_job *job = &s->jobs[number];
    *job = (search_job){.used = true, .task = wanted, .texts = job->texts};
    for (int i = 0; i < job->task.beams; i++) {
        const int32_t text = s->free_texts[--s->free_count];
        hypothesis *const all[] = {&s->live[text], &s->next[text], &s->done[text]};
        job->texts[i] = text;
        for (int j = 0; j < 3; j++)
            *all[j] =
                (hypothesis){.tokens = all[j]->tokens, .logprobs = all[j]->logprobs};
    }
    sh_decoder_begin(s->network, job->texts[0], task->window);
    for (int i = 0; i < task->prompt_count; i++) {
        const int row = sh_decoder_queue(s->network, job->texts[0], task->prompt[i]);
        job->start_row = i == task->start ? row : job->start_row;
        job->prompt_row = row;
    }
    return number;
}

/* ---- Rows of logits ------------------------------------------------------------- */

static void rules_task(void *shared, int64_t index, int thread) {
    search *s = shared;
    logit_row *row = &s->rows[index];
    const search_job *job = &s->jobs[row->job];
    const hypothesis *h = &s->live[job->texts[row->text]];
    float *logits = logits_of(s, index);
    double total;
    (void)thread;
    sh_rules_apply(&job->task.rules, h->tokens, h->count, logits);
    sh_model_kernels(s->context)
        ->peak(s->vocabulary, logits, &row->largest, &row->who, &total);
    row->sum = (double)row->largest + log(total);
    row->damaged = !isfinite(row->sum);
}

/* ---- Greedy, and samples -------------------------------------------------------- */

/* The next token of a text. room: [V]. */
static void extend(search *s, const logit_row *row, const float *logits, int text,
                   float *room) {
    const search_job *job = &s->jobs[row->job];
    const search_task *task = &job->task;
    hypothesis *h = &s->live[job->texts[text]];
    int32_t token = row->damaged ? task->rules.end : (int32_t)row->who;
    if (!row->damaged && task->temperature > 0) {
        /* A token with the probability that softmax(logits / temperature) gives it. */
        const uint64_t counter = (uint64_t)job->step * (uint64_t)task->beams +
                                 (uint64_t)text;
        const double uniform =
            (double)(random_bits(task->seed, STREAM_SAMPLES, counter) >> 11) * 0x1p-53;
        float total;
        double passed = 0, all = 0;
        for (int i = 0; i < s->vocabulary; i++)
            room[i] = (logits[i] - row->largest) / task->temperature;
        sh_model_kernels(s->context)->soften(s->vocabulary, room, &total);
        for (int i = 0; i < s->vocabulary; i++)
            all += (double)room[i];
        for (int32_t i = 0; i < s->vocabulary && !(passed > uniform * all); i++) {
            passed += (double)room[i];
            token = room[i] > 0 ? i : token;
        }
    }
    const double logprob = (double)logits[token] - row->sum;
    h->sum += row->damaged ? 0 : logprob;
    if (token == task->rules.end)
        h->ended = true;
    else
        lengthen(h, token, (float)logprob);
}

/* ---- Beams ---------------------------------------------------------------------- */

/* Better first; of equal sums the beam and token that come first. */
static bool is_better(const candidate *a, const candidate *b) {
    if (a->sum != b->sum)
        return a->sum > b->sum;
    return a->parent != b->parent ? a->parent < b->parent : a->token < b->token;
}

static int insert(candidate *list, int count, int most, candidate one) {
    if (count == most && !is_better(&one, &list[count - 1]))
        return count;
    int at = count < most ? count++ : count - 1;
    for (; at > 0 && is_better(&one, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = one;
    return count;
}

/* After a row of logits: the next token of its text, of all texts of a job that begins,
   or what a beam proposes. */
static void choose_task(void *shared, int64_t index, int thread) {
    search *s = shared;
    const logit_row *row = &s->rows[index];
    const search_job *job = &s->jobs[row->job];
    const float *logits = logits_of(s, index);
    float *room = s->drawing + (int64_t)thread * s->vocabulary;
    if (has_beams(job)) {
        /* The best beams + 1 continuations of one beam. */
        const int32_t text = job->texts[row->text];
        const hypothesis *h = &s->live[text];
        candidate *own = s->candidates + (int64_t)text * (s->texts + 1);
        const int most = job->task.beams + 1;
        int found = 0;
        float floor = -INFINITY;
        for (int32_t token = 0; token < s->vocabulary && !row->damaged; token++)
            if (logits[token] > floor) {
                const double one = (double)logits[token] - row->sum;
                found = insert(own, found, most,
                               (candidate){h->sum + one, (float)one, token, row->text});
                if (found == most)
                    floor = logits[own[most - 1].token];
            }
        s->found[text] = found;
    } else if (job->step > 0)
        extend(s, row, logits, row->text, room);
    else
        for (int text = 0; text < job->task.beams; text++)
            extend(s, row, logits, text, room);
}

/* One step: the best candidates that go on are the next beams, those that end before the
   last of them are done. */
static void advance_beams(search *s, search_job *job) {
    /* All candidates of the job, the best first. */
    const int texts = job->step == 0 ? 1 : job->live;
    int count = 0;
    for (int i = 0; i < texts; i++) {
        const candidate *own = s->candidates + (int64_t)job->texts[i] * (s->texts + 1);
        for (int j = 0; j < s->found[job->texts[i]]; j++)
            count = insert(s->merged, count, count + 1, own[j]);
    }
    int kept = 0;
    for (int i = 0; i < count && kept < job->task.beams; i++) {
        const candidate *c = &s->merged[i];
        const bool ends = c->token == job->task.rules.end;
        if (ends && job->done == job->task.beams)
            continue;
        hypothesis *h = ends ? &s->done[job->texts[job->done++]]
                             : &s->next[job->texts[kept]];
        copy_hypothesis(h, &s->live[job->texts[c->parent]]);
        h->sum = c->sum;
        if (ends)
            continue;
        lengthen(h, c->token, c->logprob);
        s->parents[kept++] = job->texts[c->parent];
    }
    for (int i = 0; i < kept; i++) {
        const hypothesis before = s->live[job->texts[i]];
        s->live[job->texts[i]] = s->next[job->texts[i]];
        s->next[job->texts[i]] = before;
    }
    job->live = kept;
}

/* ---- Steps ---------------------------------------------------------------------- */

/* The tokens are chosen: ends a job, or queues its next rows. */
static void advance_job(search *s, search_job *job) {
    if (has_beams(job))
        advance_beams(s, job);
    bool over = !has_beams(job) || job->live == 0 || job->done == job->task.beams;
    for (int i = 0; i < job->task.beams && !has_beams(job); i++)
        over = over && s->live[job->texts[i]].ended;
    if (over || ++job->step == job->task.longest) {
        if (has_beams(job)) {
            /* Where too few have ended, the likeliest of the others, which are sorted. */
            for (int i = 0; i < job->live && job->done < job->task.beams; i++)
                copy_hypothesis(&s->done[job->texts[job->done++]],
                                &s->live[job->texts[i]]);
            if (job->done == 0) {
                s->done[job->texts[0]].count = 0;
                s->done[job->texts[0]].sum = 0;
                job->done = 1;
            }
        }
        job->best = has_beams(job) ? best_of(job, s->done, job->done)
                                   : best_of(job, s->live, job->task.beams);
        job->ended = true;
        return;
    }
    if (has_beams(job)) {
        sh_decoder_reorder(s->network, job->texts, s->parents, job->live);
    } else if (job->step == 1 && job->task.beams > 1) {
        /* The prompt was read by the first text; the others have it as their past too. */
        for (int i = 0; i < job->task.beams; i++)
            s->parents[i] = job->texts[0];
        sh_decoder_reorder(s->network, job->texts, s->parents, job->task.beams);
    }
    const int texts = has_beams(job) ? job->live : job->task.beams;
    for (int i = 0; i < texts; i++) {
        const int32_t text = job->texts[i];
        const hypothesis *h = &s->live[text];
        if (!h->ended)
            s->pending[text] =
                sh_decoder_queue(s->network, text, h->tokens[h->count - 1]);
    }
}

shoal_status sh_search_step(search *s) {
    bool damaged = false;
    int begin = 0;
    sh_decoder_run(s->network);
    /* Probabilities of silence of the jobs that begin. */
    for (int number = 0; number < s->texts; number++)
        if (s->jobs[number].used && s->jobs[number].step == 0)
            s->row_list[begin++] = s->jobs[number].start_row;
    if (begin > 0)
        sh_decoder_logits(s->network, s->row_list, begin, s->logits);
    for (int number = 0, i = 0; number < s->texts && i < begin; number++) {
        search_job *job = &s->jobs[number];
        if (!job->used || job->step > 0)
            continue;
        const float *logits = logits_of(s, i++);
        float largest;
        int64_t who;
        double total;
        sh_model_kernels(s->context)->peak(s->vocabulary, logits, &largest, &who, &total);
        job->no_speech = exp((double)logits[job->task.no_speech] - (double)largest) /
                         total;
    }
    /* Which rows of the run are wanted: of a job that begins the prompt's last, else that
       of each text that goes on. What lies in logits[i] is for rows[i]. */
    s->row_count = 0;
    for (int number = 0; number < s->texts; number++) {
        const search_job *job = &s->jobs[number];
        if (!job->used || job->ended)
            continue;
        const int texts = job->step == 0   ? 1
                          : has_beams(job) ? job->live
                                           : job->task.beams;
        for (int i = 0; i < texts; i++) {
            if (job->step > 0 && s->live[job->texts[i]].ended)
                continue;
            s->row_list[s->row_count] = job->step == 0 ? job->prompt_row
                                                       : s->pending[job->texts[i]];
            s->rows[s->row_count++] = (logit_row){.job = number, .text = i};
        }
    }
    sh_decoder_logits(s->network, s->row_list, s->row_count, s->logits);
    const team all = sh_team_of(s->context);
    sh_team_run(all, s->row_count, rules_task, s);
    sh_team_run(all, s->row_count, choose_task, s);
    for (int i = 0; i < s->row_count; i++)
        damaged = damaged || s->rows[i].damaged;
    for (int number = 0; number < s->texts; number++)
        if (s->jobs[number].used && !s->jobs[number].ended)
            advance_job(s, &s->jobs[number]);
    return damaged ? sh_fail(s->context, SHOAL_BAD_FILE,
                             "the decoder's outputs are NaN or infinite: the model's "
                             "weights are damaged")
                   : SHOAL_OK;
}

int32_t sh_search_choice(search *s, int window, int32_t after, const int32_t *among,
                         int count, double *probability) {
    const int32_t row = 0;
    int best = 0;
    /* By itself: other texts may have rows that wait. */
    sh_decoder_weights(s->network, window, &after, 1, NULL, 0, NULL);
    sh_decoder_logits(s->network, &row, 1, s->logits);
    for (int i = 0; i < count; i++)
        if (s->logits[among[i]] > s->logits[among[best]])
            best = i;
    double total = 0;
    for (int i = 0; i < count; i++)
        total += exp((double)s->logits[among[i]] - (double)s->logits[among[best]]);
    *probability = 1 / total;
    return among[best];
}
