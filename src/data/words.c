/* The words that GPT-2's byte-pair encoding works on: matches, from left to right, of the pattern
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Every byte is in exactly one of them. No match contains white space after something else, so text can be cut
 * there. */
#include "data/tokenizer.h"

/* The length in bytes of the UTF-8 sequence that begins with text[0], by its first two bytes; 0: it is not valid. */
static int sequence_length(const uint8_t *text, int64_t left) {
    uint8_t first = text[0], second = left > 1 ? text[1] : 0;
    if (first >= 0xC2 && first <= 0xDF)
        return second >= 0x80 && second <= 0xBF ? 2 : 0;
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED   ? 0x9F
                   : first == 0xF4 ? 0x8F
                                   : 0xBF; /* no surrogates, none above 0x10FFFF */
    if (first < 0xE0 || first > 0xF4 || second < low || second > high)
        return 0;
    return first < 0xF0 ? 3 : 4;
}

int dsc_utf8_next(const uint8_t *text, int64_t left, dsc_char_class *kind) {
    if (text[0] < 0x80) {
        *kind = dsc_char_class_of(text[0]);
        return 1;
    }
    *kind = DSC_CHAR_OTHER;
    int length = sequence_length(text, left);
    if (length == 0 || length > left)
        return 1;
    uint32_t code = text[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 1;
        code = code << 6 | (text[i] & 0x3Fu);
    }
    *kind = dsc_char_class_of(code);
    return length;
}

/* Returns the end of the run of characters of this class that begins at text[at]; *last: where its last character
 * begins. */
static int64_t run_end(const uint8_t *text, int64_t left, int64_t at, dsc_char_class kind, int64_t *last) {
    while (at < left) {
        dsc_char_class next;
        int length = dsc_utf8_next(text + at, left - at, &next);
        if (next != kind)
            break;
        *last = at;
        at += length;
    }
    return at;
}

/* 2 or 3 when the text begins with 's 't 're 've 'm 'll or 'd, else 0. */
static int contraction(const uint8_t *text, int64_t left) {
    if (left < 2 || text[0] != '\'')
        return 0;
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd')
        return 2;
    if (left < 3)
        return 0;
    if ((text[1] == 'r' && text[2] == 'e') || (text[1] == 'v' && text[2] == 'e') ||
        (text[1] == 'l' && text[2] == 'l'))
        return 3;
    return 0;
}

int64_t dsc_word_length(const uint8_t *text, int64_t left) {
    dsc_char_class kind;
    int64_t last = 0;
    int length = contraction(text, left);
    if (length > 0)
        return length;
    const int blank = text[0] == ' ' && left > 1; /* a blank belongs to the word after it */
    dsc_utf8_next(text + blank, left - blank, &kind);
    if (kind != DSC_CHAR_SPACE)
        return run_end(text, left, blank, kind, &last);
    /* White space that other text follows leaves its last character to that text, unless it has only one. */
    int64_t end = run_end(text, left, 0, DSC_CHAR_SPACE, &last);
    return end == left || last == 0 ? end : last;
}

int dsc_is_cut(const uint8_t *text, int64_t bytes, int64_t at) {
    dsc_char_class kind;
    if (at <= 0 || at >= bytes || (text[at] != ' ' && (text[at] < '\t' || text[at] > '\r')))
        return 0;
    int64_t start = at - 1;
    while (start > 0 && at - start < 4 && (text[start] & 0xC0) == 0x80)
        start--;
    /* Bytes that are not UTF-8 are no white space either, but a cut there is not needed. */
    return dsc_utf8_next(text + start, bytes - start, &kind) == at - start && kind != DSC_CHAR_SPACE;
}

int64_t dsc_last_cut(const uint8_t *text, int64_t bytes) {
    for (int64_t at = bytes - 1; at > 0; at--)
        if (dsc_is_cut(text, bytes, at))
            return at;
    return 0;
}
