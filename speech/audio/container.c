#define _GNU_SOURCE
#include "speech/audio/container.h"

#include <string.h>
#include <unistd.h>

typedef struct {
    int descriptor;
    int64_t size;
} bytes_of_file;

static const container_state whole = {.verdict = CONTAINER_WHOLE};

static bool read_at(const bytes_of_file *file, int64_t at, void *bytes, size_t count) {
    return at >= 0 && pread(file->descriptor, bytes, count, at) == (ssize_t)count;
}

static uint32_t little(const unsigned char *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
           (uint32_t)b[3] << 24;
}

static uint32_t big(const unsigned char *b) {
    return (uint32_t)b[3] | (uint32_t)b[2] << 8 | (uint32_t)b[1] << 16 |
           (uint32_t)b[0] << 24;
}

static container_state compare(int64_t there, int64_t announced) {
    if (there >= announced)
        return whole;
    return (container_state){.verdict = CONTAINER_CUT,
                             .there = there < 0 ? 0 : there,
                             .announced = announced};
}

/* ---- WAV, AIFF, AU ----------------------------------------------------------------- */

/* Encoders that write to a pipe store 0 or the maximum as the size. */
static bool is_unknown(uint32_t announced) {
    return announced == 0 || announced >= 0x7ffff000;
}

typedef struct {
    uint32_t (*number)(const unsigned char *);
    const char *sound; /* name of the chunk with the audio */
    int64_t large;     /* bytes of audio from RF64's "ds64"; 0 if there is none */
    uint32_t frame;    /* bytes per sample of all channels; 1 if unknown */
} chunk_form;

/* Whether chunks, rather than audio, follow from there to the end of the file. */
static bool are_chunks(const bytes_of_file *file, int64_t at, const chunk_form *form) {
    unsigned char head[8];
    while (at < file->size && read_at(file, at, head, 8)) {
        for (int i = 0; i < 4; i++)
            if (head[i] < ' ' || head[i] > '~')
                return false;
        const uint32_t size = form->number(head + 4);
        at += 8 + (int64_t)size + (size & 1);
    }
    return at == file->size || at == file->size + 1; /* the last may lack its padding */
}

/* Chunks: a name, a size, a body of even size. */
static container_state check_chunks(const bytes_of_file *file, chunk_form form) {
    enum { MOST_CHUNKS = 10000 };
    unsigned char head[8], b[16];
    int64_t at = 12;
    for (int i = 0; i < MOST_CHUNKS && read_at(file, at, head, 8); i++) {
        const uint32_t size = form.number(head + 4);
        const int64_t body = at + 8;
        if (memcmp(head, form.sound, 4) == 0) {
            /* Less than a frame may be missing without loss of audio. */
            const bool large = size == UINT32_MAX && form.large > 0;
            const int64_t wanted = large ? form.large : (int64_t)size;
            const int64_t there = file->size - body;
            if (size == 0 && there > 0 && !are_chunks(file, body, &form))
                return (container_state){.open_size = body - 4,
                                         .big_endian = form.number == big};
            if ((!large && is_unknown(size)) || there > wanted - (int64_t)form.frame)
                return whole;
            return compare(there, wanted);
        }
        /* Other chunks describe the one with the audio. */
        if (memcmp(head, "ds64", 4) == 0 && read_at(file, body, b, 16))
            form.large = (int64_t)((uint64_t)little(b + 12) << 32 | little(b + 8));
        if (memcmp(head, "fmt ", 4) == 0 && read_at(file, body, b, 16)) {
            const unsigned char reversed[4] = {b[13], b[12], 0, 0};
            const uint32_t frame = little(form.number == big ? reversed : b + 12) &
                                   0xffff;
            form.frame = frame > 0 ? frame : 1;
        }
        at += 8 + (int64_t)size + (size & 1);
    }
    return whole; /* without audio, which libsndfile rejects */
}

/* ---- MP3 --------------------------------------------------------------------------- */

/* The first frame may be a Xing header, which has the total number of bytes. */
static container_state check_mp3(const bytes_of_file *file, const unsigned char *head) {
    enum { HAS_FRAMES = 1, HAS_BYTES = 2 };
    unsigned char f[64];
    int64_t begin = 0;
    if (memcmp(head, "ID3", 3) == 0) /* a tag, whose size has 4 times 7 bits */
        begin = 10 + ((int64_t)(head[6] & 127) << 21 | (int64_t)(head[7] & 127) << 14 |
                      (int64_t)(head[8] & 127) << 7 | (head[9] & 127));
    if (!read_at(file, begin, f, sizeof f) || f[0] != 0xff || (f[1] & 0xe6) != 0xe2)
        return whole; /* not a frame of layer III */
    const bool mono = f[3] >> 6 == 3, first_version = (f[1] & 8) != 0;
    const unsigned char *xing = f + 4 +
                                (first_version ? (mono ? 17 : 32) : (mono ? 9 : 17));
    const uint32_t flags = big(xing + 4);
    if ((memcmp(xing, "Xing", 4) != 0 && memcmp(xing, "Info", 4) != 0) ||
        !(flags & HAS_BYTES))
        return whole;
    return compare(file->size - begin, big(xing + (flags & HAS_FRAMES ? 12 : 8)));
}

/* ---- OGG --------------------------------------------------------------------------- */

enum { PAGE_HEAD = 27, LARGEST_PAGE = PAGE_HEAD + 255 + 255 * 255 };

typedef struct {
    uint32_t table[256];               /* of CRC-32 */
    unsigned char bytes[LARGEST_PAGE]; /* the current page, */
    int64_t length;                    /* its length, */
    int packets;                       /* and the number of packets that end in it */
} ogg_page;

/* False if there is no complete page with a correct checksum. */
static bool read_page(const bytes_of_file *file, int64_t at, ogg_page *page) {
    unsigned char *bytes = page->bytes;
    if (!read_at(file, at, bytes, PAGE_HEAD) || memcmp(bytes, "OggS", 4) != 0 ||
        !read_at(file, at + PAGE_HEAD, bytes + PAGE_HEAD, bytes[26]))
        return false;
    const int64_t head = PAGE_HEAD + bytes[26];
    page->length = head;
    page->packets = 0;
    for (int64_t i = PAGE_HEAD; i < head; i++) {
        page->length += bytes[i];
        page->packets += bytes[i] < 255;
    }
    if (!read_at(file, at + head, bytes + head, (size_t)(page->length - head)))
        return false;
    /* The checksum is computed with its own field, bytes 22 to 25, set to zero. */
    uint32_t sum = 0;
    for (int64_t i = 0; i < page->length; i++) {
        const unsigned char byte = i >= 22 && i < 26 ? 0 : bytes[i];
        sum = sum << 8 ^ page->table[(sum >> 24 ^ byte) & 255];
    }
    return sum == little(bytes + 22);
}

/* Checks pages up to the last one of the first stream, the only one that is read. */
static container_state check_ogg(const bytes_of_file *file) {
    enum { LAST_PAGE = 4 };
    ogg_page page;
    uint32_t stream = 0;
    int64_t broken_at = 0;
    int headers = 1; /* packets before the audio */
    bool ended = false;
    for (uint32_t i = 0; i < 256; i++) { /* polynomial 0x04c11db7, most significant bit
                                            first */
        uint32_t rest = i << 24;
        for (int bit = 0; bit < 8; bit++)
            rest = rest << 1 ^ (rest >> 31 ? 0x04c11db7 : 0);
        page.table[i] = rest;
    }
    for (int64_t at = 0; read_page(file, at, &page); at += page.length) {
        if (at == 0) {
            stream = little(page.bytes + 14);
            const unsigned char *packet = page.bytes + PAGE_HEAD + page.bytes[26];
            headers = page.length > 40 && memcmp(packet, "\1vorbis", 7) == 0 ? 3 : 2;
        }
        if (little(page.bytes + 14) == stream) {
            headers -= page.packets;
            ended = (page.bytes[5] & LAST_PAGE) != 0;
        }
        broken_at = at + page.length;
        if (ended)
            break;
    }
    if (headers > 0)
        return (container_state){.verdict = CONTAINER_UNREADABLE, .at = broken_at};
    return ended ? whole
                 : (container_state){.verdict = CONTAINER_BROKEN, .at = broken_at};
}

/* ---- All formats ------------------------------------------------------------------ */

container_state sh_container_check(int descriptor, int64_t size) {
    const bytes_of_file file = {descriptor, size};
    unsigned char head[12];
    if (!read_at(&file, 0, head, sizeof head))
        return whole;
    if (memcmp(head + 8, "WAVE", 4) == 0 &&
        (memcmp(head, "RIFF", 4) == 0 || memcmp(head, "RF64", 4) == 0))
        return check_chunks(&file, (chunk_form){little, "data", 0, 1});
    if (memcmp(head, "RIFX", 4) == 0 && memcmp(head + 8, "WAVE", 4) == 0)
        return check_chunks(&file, (chunk_form){big, "data", 0, 1});
    if (memcmp(head, "FORM", 4) == 0 && memcmp(head + 8, "AIF", 3) == 0)
        return check_chunks(&file, (chunk_form){big, "SSND", 0, 1});
    if (memcmp(head, ".snd", 4) == 0) /* offset and size of the audio */
        return is_unknown(big(head + 8)) ? whole
                                         : compare(size - big(head + 4), big(head + 8));
    if (memcmp(head, "OggS", 4) == 0)
        return check_ogg(&file);
    return check_mp3(&file, head);
}
