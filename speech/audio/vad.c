/* Voice activity detection: frames of 10 ms whose bands rise above the noise, runs of
   such frames between pauses, runs that sound like speech, pieces cut in pauses, and
   windows packed with pieces. */
#include <kiss_fftr.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "speech/audio/vad.h"

enum {
    HOP = AUDIO_RATE / 100, /* samples per frame */
    FFT = 512,              /* samples of a frame's transform */
    FRAMES = AUDIO_WINDOW / HOP,
    BANDS = 8,
    LOWEST = 3,  /* bins 3 .. 128, 94 Hz to 4 kHz, are compared for stationarity */
    SHAPE = 126, /* number of these bins */
    BLOCK = 50,  /* frames per noise minimum */
    BEHIND = 12, /* number of blocks before */
    AHEAD = 8,   /* and after one that determine its noise */
    TASK = 100,  /* frames per task */
    MOST_RUNS = FRAMES / 10
};

/* First bins of the bands: 94 Hz to 7.2 kHz, each with enough bins to be steady in
   steady noise. */
static const int edges[BANDS + 1] = {3, 11, 19, 29, 41, 59, 85, 131, 231};

/* Tuned on speakers of the training set, see docs/notebook/SPEECH.md. */
#define NOTHING_BELOW -100.0f /* dB of full scale: digital silence, not noise */
#define NO_POWER 1e-10f       /* the same as a power */
#define LOWEST_NOISE -95.0f   /* dB, minimum for a band */
#define FAR_BELOW                                                                        \
    50.0f                  /* maximum distance of the noise from the loudest sound,
                                 dB */
#define RISE 4.0f          /* dB above the noise that are ignored */
#define MOST_RISE 15.0f    /* maximum rise of a band, dB */
#define ACTIVE_ABOVE 1.0f  /* threshold of the mean over the bands */
#define LIVELY_ABOVE 0.25f /* threshold of that mean over 21 frames */
#define STILL_BELOW 0.02f  /* 1 - cosine of a spectrum and one 50 ms later */
#define NEAR_LOUDEST 16.0f /* dB: frames by which a run is classified */
#define MOST_STILL 0.35    /* maximum share of stationary frames: a tone, a chord, hum */
#define MOST_HELD 0.85     /* the same for means over 150 ms: beating low notes */
#define STEADY_BELOW 4.0f  /* dB between the 10 % and 90 % quantiles: an engine */

enum {
    BRIDGED = 10,     /* shorter pauses, in frames, are ignored */
    CLICK = 10,       /* shorter runs are ignored */
    SHORT = 32,       /* runs that a click can make lively */
    JUDGED = 50,      /* minimum number of frames for a classification */
    STRETCH = 200,    /* number of frames that are classified together */
    PAD = 40,         /* frames added before and after a run */
    LONG_PAUSE = 100, /* a piece ends in such a pause */
    GOOD_PAUSE = 40   /* a pause between phrases */
};

typedef struct {
    float bands[BANDS]; /* power */
    float shape[SHAPE]; /* magnitudes */
} sound_frame;

typedef struct {
    float floor[BANDS]; /* dB, minimum; INFINITY if there was no sound */
    float level;        /* dB, maximum over all bands together */
} noise_block;

/* Properties of the latest sound, in frames. */
typedef struct {
    double still, held, heard;
} sound_memory;

/* Frames begin .. end - 1, active except for short pauses. */
typedef struct {
    int begin, end;
    bool speech;
    sound_memory after; /* classification */
} sound_run;

struct speech_detector {
    shoal_context *context;
    int threads;
    size_t transform_size;
    float *window;          /* [FFT] */
    char *transforms;       /* [threads][transform_size] */
    sound_frame *frames;    /* [FRAMES] */
    int64_t first;          /* sample of the recording at which frame 0 begins; -1 if
                               none */
    int count, whole;       /* frames; frames with all their samples */
    float (*smooth)[BANDS]; /* [FRAMES], dB, mean of 5 frames */
    float *level;           /* [FRAMES], dB, mean of 5 frames over all bands */
    bool *still, *held;     /* [FRAMES] */
    bool *active;           /* [FRAMES] */
    float *rise;            /* [FRAMES], dB above the noise */
    float *sorted;          /* [FRAMES] */
    sound_run *runs;        /* [MOST_RUNS] */
    sound_run *stretches;   /* [MOST_RUNS], parts of runs that are classified */
    sound_run *voices;      /* [MOST_RUNS], runs of speech */
    int run_count, stretch_count, voice_count;
    noise_block before[BEHIND]; /* of the sound before frame 0, latest last */
    noise_block blocks[FRAMES / BLOCK + 1];
    sound_memory memory; /* of the runs before frame 0 */
};

/* ---- Memory --------------------------------------------------------------------- */

static void place(void *argument, block_layout *block) {
    speech_detector *d = argument;
    sh_reserve(block, 1, sizeof *d);
    d->window = sh_reserve(block, FFT, sizeof *d->window);
    d->transforms = sh_reserve(block, d->threads, d->transform_size);
    d->frames = sh_reserve(block, FRAMES, sizeof *d->frames);
    d->smooth = sh_reserve(block, FRAMES, sizeof *d->smooth);
    d->level = sh_reserve(block, FRAMES, sizeof *d->level);
    d->still = sh_reserve(block, FRAMES, sizeof *d->still);
    d->held = sh_reserve(block, FRAMES, sizeof *d->held);
    d->active = sh_reserve(block, FRAMES, sizeof *d->active);
    d->rise = sh_reserve(block, FRAMES, sizeof *d->rise);
    d->sorted = sh_reserve(block, FRAMES, sizeof *d->sorted);
    d->runs = sh_reserve(block, MOST_RUNS, sizeof *d->runs);
    d->stretches = sh_reserve(block, MOST_RUNS, sizeof *d->stretches);
    d->voices = sh_reserve(block, MOST_RUNS, sizeof *d->voices);
}

static kiss_fftr_cfg transform_of(const speech_detector *d, int thread) {
    return (kiss_fftr_cfg)(void *)(d->transforms + (size_t)thread * d->transform_size);
}

#define NONE INFINITY
static const noise_block unknown_noise = {{NONE, NONE, NONE, NONE, NONE, NONE, NONE,
                                           NONE},
                                          -INFINITY};

shoal_status sh_detector_create(shoal_context *context, speech_detector **made) {
    const double turn = 6.283185307179586476925286766559;
    speech_detector sized = {.context = context, .threads = context->threads};
    kiss_fftr_alloc(FFT, 0, NULL, &sized.transform_size);
    sized.transform_size = (sized.transform_size + CACHE_LINE - 1) & ~(CACHE_LINE - 1ul);
    speech_detector *d = sh_allocate_parts(context, place, &sized, NULL);
    *made = d;
    if (!d)
        return SHOAL_NO_MEMORY;
    *d = sized;
    for (int thread = 0; thread < d->threads; thread++)
        kiss_fftr_alloc(FFT, 0, transform_of(d, thread), &d->transform_size);
    /* Scaled so that a full-scale sine has power 1/2 in its band. */
    for (int i = 0; i < FFT; i++)
        d->window[i] = (float)((1 - cos(turn * i / FFT)) / (FFT * sqrt(0.75)));
    d->first = -1;
    for (int i = 0; i < BEHIND; i++)
        d->before[i] = unknown_noise;
    return SHOAL_OK;
}

void sh_detector_destroy(speech_detector *d) {
    if (d)
        sh_release(d->context, d);
}

/* ---- Frames --------------------------------------------------------------------- */

typedef struct {
    speech_detector *d;
    const float *samples;
    int64_t count;
    int done; /* frames already computed */
} measuring;

/* A frame is centred in the FFT's samples; the signal is zero beyond its ends. */
static void measure_task(void *shared, int64_t task, int thread) {
    const measuring *m = shared;
    speech_detector *d = m->d;
    const int begin = m->done + (int)task * TASK;
    const int end = begin + TASK < d->count ? begin + TASK : d->count;
    float windowed[FFT];
    kiss_fft_cpx spectrum[FFT / 2 + 1];
    for (int frame = begin; frame < end; frame++) {
        const int64_t from = (int64_t)frame * HOP + HOP / 2 - FFT / 2;
        for (int i = 0; i < FFT; i++) {
            const int64_t at = from + i;
            const bool inside = at >= 0 && at < m->count;
            windowed[i] = inside ? m->samples[at] * d->window[i] : 0;
        }
        kiss_fftr(transform_of(d, thread), windowed, spectrum);
        sound_frame *made = &d->frames[frame];
        memset(made->bands, 0, sizeof made->bands);
        for (int band = 0; band < BANDS; band++)
            for (int bin = edges[band]; bin < edges[band + 1]; bin++)
                made->bands[band] += spectrum[bin].r * spectrum[bin].r +
                                     spectrum[bin].i * spectrum[bin].i;
        for (int i = 0; i < SHAPE; i++) {
            const kiss_fft_cpx *bin = &spectrum[LOWEST + i];
            made->shape[i] = sqrtf(bin->r * bin->r + bin->i * bin->i);
        }
    }
}

/* ---- Noise ---------------------------------------------------------------------- */

static float decibels(float power) {
    return 10 * log10f(power + 1e-13f);
}

/* Averages the powers [BANDS] of the frames around one; returns whether all of them
   have sound. */
static bool average(const speech_detector *d, int frame, int around, float *powers) {
    const int begin = frame > around ? frame - around : 0;
    const int end = frame + around < d->count ? frame + around + 1 : d->count;
    bool sound = true;
    memset(powers, 0, BANDS * sizeof *powers);
    for (int at = begin; at < end; at++) {
        float sum = 0;
        for (int band = 0; band < BANDS; band++) {
            powers[band] += d->frames[at].bands[band] / (float)(end - begin);
            sum += d->frames[at].bands[band];
        }
        sound = sound && sum > NO_POWER;
    }
    return sound;
}

/* Number of frames on each side, or distance. */
enum { FAST = 2, SLOW = 5, WIDE = 10, LAG = 5, HELD = 15 };

static void find_noise(speech_detector *d) {
    const int blocks = (d->count + BLOCK - 1) / BLOCK;
    for (int block = 0; block < blocks; block++)
        d->blocks[block] = unknown_noise;
    for (int frame = 0; frame < d->count; frame++) {
        noise_block *block = &d->blocks[frame / BLOCK];
        float powers[BANDS], sum = 0;
        average(d, frame, FAST, powers);
        for (int band = 0; band < BANDS; band++) {
            d->smooth[frame][band] = decibels(powers[band]);
            sum += powers[band];
        }
        d->level[frame] = decibels(sum);
        block->level = fmaxf(block->level, d->level[frame]);
        if (frame >= SLOW && frame + SLOW < d->whole && average(d, frame, SLOW, powers))
            for (int band = 0; band < BANDS; band++)
                block->floor[band] = fminf(block->floor[band], decibels(powers[band]));
    }
}

/* ---- Activity ------------------------------------------------------------------- */

/* Finds frames that rise enough, or rise a little together with their neighbours. */
static void find_active(speech_detector *d) {
    const int blocks = (d->count + BLOCK - 1) / BLOCK;
    noise_block noise = unknown_noise;
    double sum = 0;
    for (int frame = 0; frame < d->count; frame++) {
        if (frame % BLOCK == 0) { /* estimate the noise from the blocks around this one */
            const int block = frame / BLOCK;
            noise = unknown_noise;
            for (int at = block - BEHIND; at <= block + AHEAD && at < blocks; at++) {
                const noise_block *one = at < 0 ? &d->before[BEHIND + at]
                                                : &d->blocks[at];
                noise.level = fmaxf(noise.level, one->level);
                for (int band = 0; band < BANDS; band++)
                    noise.floor[band] = fminf(noise.floor[band], one->floor[band]);
            }
            const float least = fmaxf(noise.level - FAR_BELOW, LOWEST_NOISE);
            for (int band = 0; band < BANDS; band++)
                if (!(noise.floor[band] > least && isfinite(noise.floor[band])))
                    noise.floor[band] = least;
        }
        float rises = 0; /* rise of the frame above the noise, dB */
        for (int band = 0; band < BANDS; band++) {
            const float rise = d->smooth[frame][band] - noise.floor[band] - RISE;
            rises += rise < 0 ? 0 : fminf(rise, MOST_RISE);
        }
        d->rise[frame] = rises / BANDS;
    }
    for (int frame = -WIDE; frame < d->count; frame++) {
        sum += frame + WIDE < d->count ? (double)d->rise[frame + WIDE] : 0;
        sum -= frame > WIDE ? (double)d->rise[frame - WIDE - 1] : 0;
        if (frame >= 0)
            d->active[frame] =
                d->rise[frame] > ACTIVE_ABOVE ||
                (d->rise[frame] > 0 && sum > (double)LIVELY_ABOVE * (2 * WIDE + 1));
    }
}

/* Finds frames whose spectrum, summed over three frames, has the same shape 50 ms
   earlier or later. */
static void find_still(speech_detector *d) {
    memset(d->still, 0, (size_t)d->count * sizeof *d->still);
    for (int frame = 1; frame + LAG + 1 < d->count; frame++) {
        if (d->level[frame] < NOTHING_BELOW || d->level[frame + LAG] < NOTHING_BELOW)
            continue;
        const sound_frame *now = &d->frames[frame], *later = now + LAG;
        float both = 0, before = 0, after = 0;
        for (int i = 0; i < SHAPE; i++) {
            const float a = now[-1].shape[i] + now[0].shape[i] + now[1].shape[i];
            const float b = later[-1].shape[i] + later[0].shape[i] + later[1].shape[i];
            both += a * b;
            before += a * a;
            after += b * b;
        }
        if (both > (1 - STILL_BELOW) * sqrtf(before * after))
            d->still[frame] = d->still[frame + LAG] = true;
    }
}

/* Finds intervals of 2 HELD frames whose two halves have the same shape. */
static void find_held(speech_detector *d) {
    /* Sums of the HELD frames before a frame and from it on. */
    double left[SHAPE] = {0}, right[SHAPE] = {0};
    memset(d->held, 0, (size_t)d->count * sizeof *d->held);
    for (int frame = 0; frame < 2 * HELD && 2 * HELD <= d->count; frame++)
        for (int i = 0; i < SHAPE; i++)
            (frame < HELD ? left : right)[i] += (double)d->frames[frame].shape[i];
    for (int frame = HELD; frame + HELD <= d->count; frame++) {
        double both = 0, before = 0, after = 0;
        for (int i = 0; i < SHAPE; i++) {
            if (frame > HELD) {
                const double middle = (double)d->frames[frame - 1].shape[i];
                left[i] += middle - (double)d->frames[frame - 1 - HELD].shape[i];
                right[i] += (double)d->frames[frame - 1 + HELD].shape[i] - middle;
            }
            both += left[i] * right[i];
            before += left[i] * left[i];
            after += right[i] * right[i];
        }
        if (d->level[frame] >= NOTHING_BELOW &&
            both > (1 - (double)STILL_BELOW) * sqrt(before * after))
            memset(d->held + frame - HELD, true, 2 * HELD * sizeof *d->held);
    }
}

/* ---- Runs ----------------------------------------------------------------------- */

static void find_runs(speech_detector *d) {
    sound_run run = {0};
    d->run_count = 0;
    for (int frame = 0; frame <= d->count; frame++) {
        const bool over = frame == d->count;
        if (!over && !d->active[frame])
            continue;
        if (over || run.end == 0 || frame - run.end >= BRIDGED) {
            /* A click is loud in few frames, but makes its neighbours lively. */
            int loud = 0;
            for (int at = run.begin; at < run.end; at++)
                loud += d->rise[at] > ACTIVE_ABOVE;
            if (run.begin < run.end && (loud >= CLICK || run.end - run.begin >= SHORT))
                d->runs[d->run_count++] = run;
            run.begin = frame;
        }
        run.end = frame + 1;
    }
}

static int compare_floats(const void *a, const void *b) {
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* Tones are stationary between onsets; voices never are. A short run is classified
   together with those before it. */
static bool is_speech(speech_detector *d, sound_run *run, sound_memory before) {
    /* Statistics of the frames near the loudest. */
    sound_memory now = {0};
    float loudest = -INFINITY;
    for (int frame = run->begin; frame < run->end; frame++)
        loudest = fmaxf(loudest, d->level[frame]);
    for (int frame = run->begin; frame < run->end; frame++)
        if (d->level[frame] > loudest - NEAR_LOUDEST) {
            now.still += d->still[frame];
            now.held += d->held[frame] || d->still[frame];
            now.heard++;
        }
    if (now.heard < JUDGED && before.heard > 0) {
        const double part = fmin(before.heard, JUDGED - now.heard);
        now.still += before.still * part / before.heard;
        now.held += before.held * part / before.heard;
        now.heard += part;
    }
    run->after = now;
    if (now.still > MOST_STILL * now.heard || now.held > MOST_HELD * now.heard)
        return false;
    /* An engine, a fan, or noise that was switched on has a constant level. */
    const int count = run->end - run->begin;
    if (count < 2 * JUDGED)
        return true;
    memcpy(d->sorted, d->level + run->begin, (size_t)count * sizeof *d->sorted);
    qsort(d->sorted, (size_t)count, sizeof *d->sorted, compare_floats);
    return !(d->sorted[count * 9 / 10] - d->sorted[count / 10] < STEADY_BELOW);
}

static void keep_speech(speech_detector *d) {
    sound_memory before = d->memory;
    d->stretch_count = d->voice_count = 0;
    for (int i = 0; i < d->run_count; i++)
        for (int at = d->runs[i].begin; at < d->runs[i].end;) {
            /* Classified in parts, the last of which is up to twice as long. */
            const int end = d->runs[i].end;
            sound_run part = {.begin = at,
                              .end = end - at < 2 * STRETCH ? end : at + STRETCH};
            part.speech = is_speech(d, &part, before);
            before = part.after;
            d->stretches[d->stretch_count++] = part;
            at = part.end;
        }
    /* Keeps parts with speech, and those between them: a held vowel, not a tune. */
    for (int i = 0; i < d->stretch_count; i++) {
        const sound_run *one = &d->stretches[i];
        const bool left = i > 0 && one->begin - one[-1].end < LONG_PAUSE;
        const bool right = i + 1 < d->stretch_count &&
                           one[1].begin - one->end < LONG_PAUSE;
        if (!one->speech &&
            ((!left && !right) || (left && !one[-1].speech) || (right && !one[1].speech)))
            continue;
        if (d->voice_count > 0 && d->voices[d->voice_count - 1].end == one->begin)
            d->voices[d->voice_count - 1].end = one->end;
        else
            d->voices[d->voice_count++] = *one;
    }
}

/* ---- Pieces --------------------------------------------------------------------- */

static int pause_after(const speech_detector *d, int run) {
    const int next = run + 1 < d->voice_count ? d->voices[run + 1].begin : d->count;
    return next - d->voices[run].end;
}

/* End of a piece after a run, and earliest start of the next. */
static int end_behind(const speech_detector *d, int run) {
    const int pause = pause_after(d, run);
    return d->voices[run].end + (pause < 2 * PAD ? pause / 2 : PAD);
}

/* End, in frames, of a piece of at most `most` frames that starts with the first run; 0
   if `phrase` requires a pause between phrases and there is none. */
static int find_end(const speech_detector *d, bool last, int most, bool phrase) {
    int all = 0, longest = -1, between = -1;
    while (all + 1 < d->voice_count && pause_after(d, all) < LONG_PAUSE)
        all++;
    const bool open = all + 1 == d->voice_count && !last &&
                      pause_after(d, all) < LONG_PAUSE;
    if (!open && end_behind(d, all) <= most)
        return end_behind(d, all);
    /* The latest pause between phrases in the second half, or the longest of the last
       two thirds, or of all; -1 if there is none. */
    for (int run = 0; run < all + !open && end_behind(d, run) <= most; run++) {
        const int pause = pause_after(d, run);
        if (longest < 0 || pause >= pause_after(d, longest) ||
            d->voices[longest].end < most / 3)
            longest = run;
        if (pause >= GOOD_PAUSE && d->voices[run].end > most / 2)
            between = run;
    }
    const int cut = between >= 0 ? between : longest;
    if (phrase)
        return cut >= 0 && pause_after(d, cut) >= GOOD_PAUSE ? end_behind(d, cut) : 0;
    if (cut >= 0)
        return end_behind(d, cut);
    int quietest = most * 2 / 3; /* speech without a pause: cut at the quietest frame */
    for (int frame = quietest; frame < most; frame++)
        if (d->level[frame] < d->level[quietest])
            quietest = frame;
    return quietest;
}

static int64_t sample_at(const speech_detector *d, int frame, int64_t count) {
    const int64_t at = (int64_t)frame * HOP;
    return d->first + (at < count ? at : count);
}

piece_found sh_detector_within(speech_detector *d, int64_t from, const float *samples,
                               int64_t count, int64_t most, sound_piece *piece) {
    const bool last = count < AUDIO_WINDOW;
    /* Computes the frames of these samples; frames of the previous call are reused. */
    const int64_t ahead = from - d->first;
    if (d->first >= 0 && ahead >= 0 && ahead % HOP == 0 &&
        ahead <= (int64_t)d->count * HOP) {
        /* Discards the first frames, keeping their statistics and noise. */
        const int frames = (int)(ahead / HOP);
        for (int i = 0; i < d->stretch_count && d->stretches[i].end <= frames; i++)
            d->memory = d->stretches[i].after;
        for (int block = 0; (block + 1) * BLOCK <= frames; block++) {
            memmove(d->before, d->before + 1, (BEHIND - 1) * sizeof *d->before);
            d->before[BEHIND - 1] = d->blocks[block];
        }
        d->count -= frames;
        d->whole = d->whole > frames ? d->whole - frames : 0;
        memmove(d->frames, d->frames + frames, (size_t)d->count * sizeof *d->frames);
        d->first += (int64_t)frames * HOP;
    } else
        d->whole = 0;
    d->first = from;
    d->count = (int)((count + HOP - 1) / HOP);
    measuring m = {d, samples, count, d->whole < d->count ? d->whole : d->count};
    sh_team_run(sh_team_of(d->context), (d->count - m.done + TASK - 1) / TASK,
                measure_task, &m);
    const int64_t whole = (count - FFT / 2 - HOP / 2) / HOP;
    d->whole = whole > 0 ? (int)whole : 0;
    find_noise(d);
    find_active(d);
    find_still(d);
    find_held(d);
    find_runs(d);
    keep_speech(d);
    /* If no speech is found: the end may be the beginning of some. */
    const int kept = PAD + BRIDGED + CLICK;
    const int silence = last || d->count <= kept ? d->count : d->count - kept;
    *piece = (sound_piece){from, sample_at(d, silence, count)};
    if (d->voice_count == 0)
        return PIECE_NONE;
    const int begin = d->voices[0].begin > PAD ? d->voices[0].begin - PAD : 0;
    piece->begin = piece->end = sample_at(d, begin, count);
    if (!last && begin > LONG_PAUSE / 2)
        return PIECE_NONE;
    const int64_t room = begin + most / HOP;
    const int end =
        find_end(d, last, room < d->count ? (int)room : d->count, most < PIECE_MOST);
    if (end > begin)
        piece->end = sample_at(d, end, count);
    return end > begin ? PIECE_FOUND : PIECE_TOO_LONG;
}

/* ---- Windows ----------------------------------------------------------------------- */

enum { ALMOST_FULL = PIECE_MOST - 2 * AUDIO_RATE }; /* hardly any phrase fits */

struct window_packer {
    shoal_context *context;
    recording_stream *stream;
    speech_detector *detector;
    int64_t at;     /* next sample to read */
    float *samples; /* [AUDIO_WINDOW] */
};

static void place_packer(void *argument, block_layout *block) {
    window_packer *p = argument;
    sh_reserve(block, 1, sizeof *p);
    p->samples = sh_reserve(block, AUDIO_WINDOW, sizeof *p->samples);
}

shoal_status sh_packer_create(shoal_context *context, recording_stream *stream,
                              window_packer **made) {
    window_packer sized = {.context = context,
                           .stream = stream,
                           .at = sh_recording_first(stream)};
    *made = NULL;
    window_packer *p = sh_allocate_parts(context, place_packer, &sized, NULL);
    if (!p)
        return SHOAL_NO_MEMORY;
    *p = sized;
    const shoal_status status = sh_detector_create(context, &p->detector);
    if (status == SHOAL_OK)
        *made = p;
    else
        sh_packer_destroy(p);
    return status;
}

void sh_packer_destroy(window_packer *p) {
    if (!p)
        return;
    sh_detector_destroy(p->detector);
    sh_release(p->context, p);
}

int64_t sh_packer_passed(const window_packer *p) {
    return p->at;
}

shoal_status sh_packer_next(window_packer *p, packed_window *window,
                            const float **samples) {
    *window = (packed_window){.count = 0};
    *samples = p->samples;
    while (window->count < WINDOW_PIECES && window->samples <= ALMOST_FULL) {
        const float *sound;
        int64_t got = 0;
        sound_piece piece;
        TRY(sh_recording_window(p->stream, p->at, &sound, &got));
        if (got == 0)
            break;
        const piece_found found = sh_detector_within(p->detector, p->at, sound, got,
                                                     PIECE_MOST - window->samples,
                                                     &piece);
        if (found == PIECE_TOO_LONG)
            break;
        if (found == PIECE_FOUND) {
            memcpy(p->samples + window->samples, sound + (piece.begin - p->at),
                   (size_t)(piece.end - piece.begin) * sizeof *p->samples);
            window->samples += piece.end - piece.begin;
            window->pieces[window->count++] = piece;
        }
        p->at = piece.end;
    }
    return SHOAL_OK;
}

/* ---- Times ---------------------------------------------------------------------- */

static double packed_time(const packed_window *window, double seconds, bool begins) {
    double at = seconds * AUDIO_RATE;
    for (int i = 0; i < window->count; i++) {
        const sound_piece *piece = &window->pieces[i];
        const double length = (double)(piece->end - piece->begin);
        if (at < length || (at <= length && !begins))
            return ((double)piece->begin + (at > 0 ? at : 0)) / AUDIO_RATE;
        at -= length;
    }
    return window->count ? (double)window->pieces[window->count - 1].end / AUDIO_RATE : 0;
}

double sh_packed_end(const packed_window *window, double seconds) {
    return packed_time(window, seconds, false);
}

double sh_packed_begin(const packed_window *window, double seconds) {
    return packed_time(window, seconds, true);
}
