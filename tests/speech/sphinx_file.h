/* A small language model in Sphinx's binary form, written from its description: the one
   of ARPA text in test_ngram.c. */
#ifndef TESTS_SPEECH_SPHINX_FILE_H
#define TESTS_SPEECH_SPHINX_FILE_H

#include <stddef.h>

/* [*size], for free. */
unsigned char *make_sphinx_file(size_t *size);

#endif
