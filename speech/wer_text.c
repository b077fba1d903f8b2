/* Characters to words, and words to their normal form. */
#include <ctype.h>
#include <string.h>

#include "speech/tokenizer.h"
#include "speech/wer.h"
#include "speech/wer_parts.h"

/* ---- Words ------------------------------------------------------------------------ */

typedef struct {
    const char *from, *to;
} replacement;

/* Whole words. */
static const replacement whole[] = {
    {"won't", "will not"},
    {"can't", "can not"},
    {"cannot", "can not"},
    {"let's", "let us"},
    {"ain't", "aint"},
    {"y'all", "you all"},
    {"wanna", "want to"},
    {"gotta", "got to"},
    {"gonna", "going to"},
    {"i'ma", "i am going to"},
    {"imma", "i am going to"},
    {"woulda", "would have"},
    {"coulda", "could have"},
    {"shoulda", "should have"},
    {"ma'am", "madam"},
    {"mr", "mister"},
    {"mrs", "missus"},
    {"st", "saint"},
    {"dr", "doctor"},
    {"prof", "professor"},
    {"capt", "captain"},
    {"gov", "governor"},
    {"ald", "alderman"},
    {"gen", "general"},
    {"sen", "senator"},
    {"rep", "representative"},
    {"pres", "president"},
    {"rev", "reverend"},
    {"hon", "honorable"},
    {"asst", "assistant"},
    {"assoc", "associate"},
    {"lt", "lieutenant"},
    {"col", "colonel"},
    {"jr", "junior"},
    {"sr", "senior"},
    {"esq", "esquire"},
    {"hmm", ""},
    {"mm", ""},
    {"mhm", ""},
    {"mmm", ""},
    {"uh", ""},
    {"um", ""},
    {"theatre", "theater"},
    {"centre", "center"},
    {"centres", "centers"},
    {"theatres", "theaters"},
    {"sceptre", "scepter"},
    {"spectre", "specter"},
    {"sombre", "somber"},
    {"lustre", "luster"},
    {"fibre", "fiber"},
    {"metre", "meter"},
    {"metres", "meters"},
    {"litre", "liter"},
    {"meagre", "meager"},
    {"calibre", "caliber"},
    {"defence", "defense"},
    {"offence", "offense"},
    {"pretence", "pretense"},
    {"licence", "license"},
    {"programme", "program"},
    {"judgement", "judgment"},
    {"moustache", "mustache"},
    {"gaol", "jail"},
    {"waggon", "wagon"},
    {"waggons", "wagons"},
};

/* Endings after an apostrophe; n't comes before 't. */
static const replacement endings[] = {
    {"n't", "not"}, {"'re", "are"},  {"'s", "is"},    {"'d", "would"},
    {"'t", "not"},  {"'ll", "will"}, {"'ve", "have"}, {"'m", "am"},
};

/* Beginnings of words. */
static const replacement beginnings[] = {
    {"colour", "color"},     {"honour", "honor"},       {"favour", "favor"},
    {"labour", "labor"},     {"neighbour", "neighbor"}, {"harbour", "harbor"},
    {"humour", "humor"},     {"parlour", "parlor"},     {"vapour", "vapor"},
    {"odour", "odor"},       {"rumour", "rumor"},       {"splendour", "splendor"},
    {"ardour", "ardor"},     {"vigour", "vigor"},       {"candour", "candor"},
    {"clamour", "clamor"},   {"endeavour", "endeavor"}, {"savour", "savor"},
    {"armour", "armor"},     {"behaviour", "behavior"}, {"flavour", "flavor"},
    {"valour", "valor"},     {"rigour", "rigor"},       {"tumour", "tumor"},
    {"saviour", "savior"},   {"fervour", "fervor"},     {"grey", "gray"},
    {"plough", "plow"},      {"mould", "mold"},         {"sceptic", "skeptic"},
    {"travell", "travel"},   {"marvell", "marvel"},     {"quarrell", "quarrel"},
    {"counsell", "counsel"}, {"jewell", "jewel"},       {"levell", "level"},
};

/* Verbs that end in -ise, -ised, -ises, -ising, and -iser. */
static const char *const ise_verbs[] = {
    "real",    "recogn",    "organ", "apolog",  "civil",  "critic", "emphas", "symbol",
    "memor",   "author",    "agon",  "scrutin", "patron", "util",   "summar", "special",
    "general", "character", "bapt",  "sympath", "minim",  "maxim",  "visual", "moral",
};

static void american_ending(char *word) {
    static const char *const tails[] = {"ise", "ised", "ises", "ising", "iser", "isers"};
    for (size_t i = 0; i < sizeof ise_verbs / sizeof *ise_verbs; i++) {
        size_t length = strlen(ise_verbs[i]);
        if (strncmp(word, ise_verbs[i], length) != 0)
            continue;
        for (size_t j = 0; j < sizeof tails / sizeof *tails; j++)
            if (strcmp(word + length, tails[j]) == 0)
                word[length + 1] = 'z';
    }
}

static void american_spelling(char *word) {
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        size_t from = strlen(beginnings[i].from), to = strlen(beginnings[i].to);
        if (strncmp(word, beginnings[i].from, from) == 0) {
            memmove(word + to, word + from, strlen(word + from) + 1);
            memcpy(word, beginnings[i].to, to);
            return;
        }
    }
    american_ending(word);
}

/* Words separated by spaces. */
static void put_words(word_writer *out, const char *text) {
    char word[WER_WORD];
    while (*text) {
        size_t length = strcspn(text, " ");
        memcpy(word, text, length);
        word[length] = 0;
        if (length > 0)
            sh_word_put(out, word);
        text += length + (text[length] == ' ');
    }
}

/* A word without the apostrophes that are left, which separate. */
static void put_plain(word_writer *out, char *word) {
    for (char *c = word; *c; c++)
        *c = *c == '\'' ? ' ' : *c;
    if (!strchr(word, ' '))
        american_spelling(word);
    put_words(out, word);
}

static bool put_whole(word_writer *out, const char *word) {
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (strcmp(word, whole[i].from) == 0) {
            put_words(out, whole[i].to);
            return true;
        }
    }
    return false;
}

static void put_contracted(word_writer *out, char *word) {
    if (put_whole(out, word))
        return;
    size_t length = strlen(word);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t tail = strlen(endings[i].from);
        if (length > tail && strcmp(word + length - tail, endings[i].from) == 0) {
            word[length - tail] = 0;
            put_contracted(out, word);
            sh_word_put(out, endings[i].to);
            return;
        }
    }
    put_plain(out, word);
}

static void put_word(word_writer *out, char *word) {
    size_t length = strlen(word);
    while (length > 0 && word[length - 1] == '\'')
        word[--length] = 0;
    while (*word == '\'')
        word++;
    if (*word)
        put_contracted(out, word);
}

/* ---- Characters ------------------------------------------------------------------- */

/* Base letters of U+00C0 to U+017F; '.' marks those that have two, '-' those that are
   symbols. */
static const char base_letters[] =
    "aaaaaa.ceeeeiiiidnooooo-ouuuuy..aaaaaa.ceeeeiiiidnooooo-ouuuuy.y"
    "aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiii..jjkkkllllllllll"
    "nnnnnnnnnoooooo..rrrrrrsssssssstttttt"
    "uuuuuuuuuuuuwwyyyzzzzzzs";

_Static_assert(sizeof base_letters == 0x180 - 0xc0 + 1, "one for each character");

static const char *two_letters(uint32_t c) {
    switch (c) {
    case 0xc6:
    case 0xe6: return "ae";
    case 0xde:
    case 0xfe: return "th";
    case 0xdf: return "ss";
    case 0x132:
    case 0x133: return "ij";
    default: return "oe";
    }
}

/* The character at `text` (a byte that begins none counts as one) and its length. */
static uint32_t character_at(const char *text, size_t *length) {
    const unsigned char *c = (const unsigned char *)text;
    size_t tried = 1;
    while (tried < 5 &&
           !sh_utf8_valid(text, tried)) /* stops before it passes the final 0 */
        tried++;
    *length = tried < 5 ? tried : 1;
    switch (*length) {
    case 2: return (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
    case 3: return (c[0] & 0xfu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    case 4:
        return (c[0] & 7u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 |
               (c[3] & 0x3fu);
    default: return c[0] < 0x80 ? c[0] : 0xfffd;
    }
}

typedef struct {
    word_writer *out;
    char word[WER_WORD];
    size_t length;
} word_reader;

static void end_word(word_reader *in) {
    in->word[in->length] = 0;
    in->length = 0;
    put_word(in->out, in->word);
}

static void add_bytes(word_reader *in, const char *bytes, size_t count) {
    if (in->length + count >= sizeof in->word)
        end_word(in);
    memcpy(in->word + in->length, bytes, count);
    in->length += count;
}

/* Beyond ASCII. */
static void read_other(word_reader *in, uint32_t c, const char *bytes, size_t length) {
    if (c >= 0xc0 && c <= 0x17f) {
        char base = base_letters[c - 0xc0];
        if (base == '-')
            end_word(in);
        else
            add_bytes(in, base == '.' ? two_letters(c) : &base, base == '.' ? 2 : 1);
    } else if (c == 0x2018 || c == 0x2019 || c == 0x2bc) {
        add_bytes(in, "'", 1);
    } else if (c == 0xa3 || c == 0x20ac) {
        end_word(in);
        sh_word_put_currency(in->out, c == 0xa3 ? "pounds" : "euros");
    } else if (c < 0xc0 || (c >= 0x2000 && c <= 0x2bff) || (c >= 0x3000 && c <= 0x303f) ||
               (c >= 0xff00 && c <= 0xff0f) || c == 0xfffd) {
        end_word(in);                    /* punctuation and symbols */
    } else if (c < 0x300 || c > 0x36f) { /* those are accents of the letter before */
        add_bytes(in, bytes, length);
    }
}

static void read_ascii(word_reader *in, const char *text, char before) {
    char c = *text;
    bool in_number = isdigit((unsigned char)before) && isdigit((unsigned char)text[1]);
    if (isalnum((unsigned char)c)) {
        char lower = (char)tolower((unsigned char)c);
        add_bytes(in, &lower, 1);
    } else if (c == '\'' || (c == '.' && in_number)) {
        add_bytes(in, &c, 1);
    } else if (!(c == ',' && in_number)) {
        end_word(in);
        if (c == '&')
            sh_word_put(in->out, "and");
        if (c == '%')
            sh_word_put(in->out, "percent");
        if (c == '$')
            sh_word_put_currency(in->out, "dollars");
    }
}

/* The end of what stands in brackets that open at `text`; NULL: none, or not closed. */
static const char *bracket_end(const char *text) {
    char closing = *text == '[' ? ']' : *text == '(' ? ')' : *text == '<' ? '>' : 0;
    const char *end = closing ? strchr(text, closing) : NULL;
    return end ? end + 1 : NULL;
}

size_t sh_wer_normalise(const char *text, char *normal, size_t size) {
    word_writer out = {.text = normal, .size = size};
    word_reader in = {.out = &out};
    char before = 0;
    while (*text) {
        const char *end = bracket_end(text);
        size_t length;
        if (end) {
            end_word(&in);
            before = 0;
            text = end;
            continue;
        }
        uint32_t c = character_at(text, &length);
        if (c < 0x80)
            read_ascii(&in, text, before);
        else
            read_other(&in, c, text, length);
        before = c < 0x80 ? *text : 0;
        text += length;
    }
    end_word(&in);
    sh_word_finish(&out);
    return out.length;
}
