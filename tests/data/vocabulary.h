/* A small byte-pair encoding for tests: the 256 bytes, some merges and <|endoftext|>. */
#ifndef DSC_TESTS_DATA_VOCABULARY_H
#define DSC_TESTS_DATA_VOCABULARY_H

#include "data/fixture.h"

#include <stddef.h>

enum { TEST_VOCABULARY_ROOM = 1 << 14 };

/* The contents of vocab.json and merges.txt, ending with a 0; each has TEST_VOCABULARY_ROOM bytes. Returns the number
 * of merges; token 256 + i is what merge i makes, and the last token is <|endoftext|>. */
int test_vocabulary(char *vocab, char *merges);
/* Writes both to vocab.json and merges.txt in the folder. */
void test_write_vocabulary(const char *folder);

#endif
