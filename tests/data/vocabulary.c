#include "data/vocabulary.h"

#include <stdio.h>
#include <string.h>

/* In the files' alphabet: \u0120 (C4 A0) is a blank, \u0100 + n a byte that cannot be seen. D0 BF (the letter p of
 * Cyrillic) is the characters \u00d0 \u00bf, an emoji \u00f0 \u0141 \u013a \u0122 ... */
static const char *const pairs[][2] = {
    {"h", "e"},
    {"l", "l"},
    {"\xC4\xA0", "w"},
    {"he", "ll"},
    {"hell", "o"},
    {"a", "a"},
    {"aa", "aa"},
    {"a", "b"},
    {"\xC3\x90", "\xC2\xBF"},
    {"\xC3\xB0", "\xC5\x81"},
    {"1", "2"},
    {"\xC4\xA0", "\xC4\xA0"},
    {"aaaa", "aaaa"},
    {"\xC4\xA0w", "o"},
    {"b", "a"},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* The character of a byte, as UTF-8, with what JSON escapes escaped. */
static void spell(int byte, char out[8]) {
    int code = byte, next = 256;
    for (int b = 0; b <= byte; b++) {
        int seen = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        code = seen ? b : next;
        next += !seen;
    }
    if (code < 0x80)
        snprintf(out, 8, "%s%c", code == '"' || code == '\\' ? "\\" : "", code);
    else
        snprintf(out, 8, "%c%c", (char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)));
}

int test_vocabulary(char *vocab, char *merges) {
    char name[8];
    int used = snprintf(vocab, TEST_VOCABULARY_ROOM, "{");
    for (int b = 0; b < 256; b++) {
        spell(b, name);
        used += snprintf(vocab + used, (size_t)(TEST_VOCABULARY_ROOM - used), "\"%s\": %d, ", name, b);
    }
    int lines = snprintf(merges, TEST_VOCABULARY_ROOM, "#version: 0.2\n");
    for (int i = 0; i < PAIRS; i++) {
        used += snprintf(vocab + used, (size_t)(TEST_VOCABULARY_ROOM - used), "\"%s%s\": %d, ", pairs[i][0],
                         pairs[i][1], 256 + i);
        lines += snprintf(merges + lines, (size_t)(TEST_VOCABULARY_ROOM - lines), "%s %s\n", pairs[i][0],
                          pairs[i][1]);
    }
    snprintf(vocab + used, (size_t)(TEST_VOCABULARY_ROOM - used), "\"<|endoftext|>\": %d}\n", 256 + PAIRS);
    return PAIRS;
}

void test_write_vocabulary(const char *folder) {
    static char vocab[TEST_VOCABULARY_ROOM], merges[TEST_VOCABULARY_ROOM];
    test_vocabulary(vocab, merges);
    test_write(folder, "vocab.json", vocab, strlen(vocab));
    test_write(folder, "merges.txt", merges, strlen(merges));
}
