/* A small language model in Sphinx's binary format, written from its description: the
   ARPA model of test_ngram.c. */
#ifndef TESTS_SPEECH_SPHINX_FILE_H
#define TESTS_SPEECH_SPHINX_FILE_H

#include <stddef.h>

/* [*size], allocated by malloc. */
unsigned char *make_sphinx_file(size_t *size);

#endif
