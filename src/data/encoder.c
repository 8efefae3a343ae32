/* Text into tokens.
 *
 * A word starts as the tokens of its bytes. Then the neighbouring pair of the lowest rank, the leftmost of equal ones,
 * is merged, until no pair can be. Short words look at all pairs in every round; long ones keep the pairs in a heap and
 * the tokens in a linked list, so that n bytes take n log n steps. */
#include "base/error.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/tokenizer.h"

#include <string.h>

enum {
    SHORT_WORD = 32, /* bytes; longer words go to the heap */
    LONGEST_WORD = 1 << 30,
    KEY_WORDS = 3,    /* the cache holds words of up to 3 times 8 bytes */
    CACHE_TOKENS = 8, /* and of up to this many tokens */
    CACHE_BITS = 14   /* the cache has 2^14 places */
};

/* An entry of the cache: the last word with this hash. */
typedef struct cached_word {
    uint64_t key[KEY_WORDS]; /* the word, padded with zeros */
    int32_t tokens[CACHE_TOKENS];
    uint8_t length, count; /* length 0: empty */
} cached_word;

struct dsc_encoder {
    const dsc_tokenizer *tokenizer;
    cached_word *cache;   /* NULL: none */
    dsc_bytes list, heap; /* memory for long words */
};

dsc_status dsc_encoder_create(const dsc_tokenizer *tokenizer, int cached, dsc_encoder **out) {
    dsc_encoder *e;
    DSC_TRY(dsc_memory_alloc(1, sizeof *e, &e));
    e->tokenizer = tokenizer;
    dsc_status status = DSC_OK;
    if (cached && tokenizer->bpe)
        status = dsc_memory_alloc((int64_t)1 << CACHE_BITS, sizeof *e->cache, &e->cache);
    if (status != DSC_OK)
        dsc_encoder_destroy(&e);
    *out = e;
    return status;
}

void dsc_encoder_destroy(dsc_encoder **encoder) {
    if (!*encoder)
        return;
    dsc_memory_free(&(*encoder)->cache);
    dsc_bytes_free(&(*encoder)->list);
    dsc_bytes_free(&(*encoder)->heap);
    dsc_memory_free(encoder);
}

/* The merge of two tokens; NULL: they are not merged. */
static const dsc_merge *find_merge(const dsc_bpe *bpe, int32_t left, int32_t right) {
    const dsc_merge *merge = &bpe->merges[dsc_merge_place(bpe, left, right)];
    return merge->left >= 0 ? merge : NULL;
}

/* ---- short words ---- */

static int64_t encode_short(const dsc_bpe *bpe, const uint8_t *word, int n, int32_t *tokens) {
    const dsc_merge *pair[SHORT_WORD]; /* [i]: of tokens i and i + 1 */
    for (int i = 0; i < n; i++)
        tokens[i] = bpe->byte_token[word[i]];
    for (int i = 0; i + 1 < n; i++)
        pair[i] = find_merge(bpe, tokens[i], tokens[i + 1]);
    for (;;) {
        int best = -1;
        for (int i = 0; i + 1 < n; i++)
            if (pair[i] && (best < 0 || pair[i]->rank < pair[best]->rank))
                best = i;
        if (best < 0)
            return n;
        tokens[best] = pair[best]->whole;
        n--;
        for (int i = best + 1; i < n; i++) {
            tokens[i] = tokens[i + 1];
            pair[i - 1] = pair[i];
        }
        if (best > 0)
            pair[best - 1] = find_merge(bpe, tokens[best - 1], tokens[best]);
        if (best + 1 < n)
            pair[best] = find_merge(bpe, tokens[best], tokens[best + 1]);
    }
}

/* ---- long words ---- */

/* A token of the list; its place is that of its first byte. */
typedef struct symbol {
    int32_t token;          /* -1: merged into the one before */
    int32_t previous, next; /* -1: none */
} symbol;

/* A heap of rank * 2^32 + place, the least first. Every merge takes one out and adds at most two, so it never holds
 * more than twice as many as there are bytes. */
typedef struct pair_heap {
    uint64_t *at;
    int64_t count;
} pair_heap;

static void push(pair_heap *heap, uint64_t value) {
    int64_t i = heap->count++;
    for (; i > 0 && heap->at[(i - 1) / 2] > value; i = (i - 1) / 2)
        heap->at[i] = heap->at[(i - 1) / 2];
    heap->at[i] = value;
}

static uint64_t pop(pair_heap *heap) {
    uint64_t least = heap->at[0], value = heap->at[--heap->count];
    int64_t i = 0, child;
    while ((child = 2 * i + 1) < heap->count) {
        child += child + 1 < heap->count && heap->at[child + 1] < heap->at[child];
        if (heap->at[child] >= value)
            break;
        heap->at[i] = heap->at[child];
        i = child;
    }
    heap->at[i] = value;
    return least;
}

/* The merge of the symbol at this place and the next one; NULL: there is none. */
static const dsc_merge *merge_at(const dsc_bpe *bpe, const symbol *list, int32_t place) {
    const symbol *s = &list[place];
    return s->token < 0 || s->next < 0 ? NULL : find_merge(bpe, s->token, list[s->next].token);
}

static void push_pair(const dsc_bpe *bpe, const symbol *list, int32_t place, pair_heap *heap) {
    const dsc_merge *merge = place < 0 ? NULL : merge_at(bpe, list, place);
    if (merge)
        push(heap, (uint64_t)(uint32_t)merge->rank << 32 | (uint32_t)place);
}

static dsc_status encode_long(dsc_encoder *e, const uint8_t *word, int64_t n, int32_t *tokens,
                              int64_t *count) {
    const dsc_bpe *bpe = e->tokenizer->bpe;
    if (n > LONGEST_WORD)
        return DSC_FAIL(DSC_E_UNSUPPORTED, "a word of %lld bytes: at most %d can be encoded", (long long)n,
                        LONGEST_WORD);
    DSC_TRY(dsc_bytes_reserve(&e->list, n * (int64_t)sizeof(symbol)));
    DSC_TRY(dsc_bytes_reserve(&e->heap, 2 * n * (int64_t)sizeof(uint64_t)));
    symbol *list = (symbol *)e->list.data;
    pair_heap heap = {(uint64_t *)e->heap.data, 0};
    for (int32_t i = 0; i < n; i++)
        list[i] = (symbol){bpe->byte_token[word[i]], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < n; i++)
        push_pair(bpe, list, i, &heap);
    while (heap.count > 0) {
        uint64_t least = pop(&heap);
        int32_t place = (int32_t)(least & 0xFFFFFFFFu);
        const dsc_merge *merge = merge_at(bpe, list, place);
        if (!merge || (uint32_t)merge->rank != least >> 32)
            continue; /* one of the two has been merged since */
        symbol *left = &list[place], *right = &list[left->next];
        left->token = merge->whole;
        left->next = right->next;
        right->token = -1;
        if (left->next >= 0)
            list[left->next].previous = place;
        push_pair(bpe, list, left->previous, &heap);
        push_pair(bpe, list, place, &heap);
    }
    *count = 0;
    for (int32_t i = 0; i >= 0; i = list[i].next)
        tokens[(*count)++] = list[i].token;
    return DSC_OK;
}

/* ---- words and text ---- */

static uint64_t mix(const uint64_t key[KEY_WORDS], uint64_t length) {
    uint64_t h = (key[0] ^ length) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29 ^ key[1]) * 0xBF58476D1CE4E5B9u;
    return (h ^ h >> 29 ^ key[2]) * 0x94D049BB133111EBu;
}

static int64_t encode_cached(dsc_encoder *e, const uint8_t *word, int64_t n, int32_t *tokens) {
    uint64_t key[KEY_WORDS] = {0};
    memcpy(key, word, (size_t)n);
    cached_word *place = &e->cache[mix(key, (uint64_t)n) >> (64 - CACHE_BITS)];
    if (place->length == n && memcmp(place->key, key, sizeof key) == 0) {
        for (int i = 0; i < place->count; i++)
            tokens[i] = place->tokens[i];
        return place->count;
    }
    int64_t count = encode_short(e->tokenizer->bpe, word, (int)n, tokens);
    if (count <= CACHE_TOKENS) {
        memcpy(place->key, key, sizeof key);
        memcpy(place->tokens, tokens, (size_t)count * sizeof *tokens);
        place->length = (uint8_t)n;
        place->count = (uint8_t)count;
    }
    return count;
}

/* Text without special tokens. */
static dsc_status encode_words(dsc_encoder *e, const uint8_t *text, int64_t bytes, int32_t *tokens,
                               int64_t *count) {
    int64_t made = 0, more = 0;
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = dsc_word_length(text + at, bytes - at);
        if (e->cache && n <= KEY_WORDS * 8)
            more = encode_cached(e, text + at, n, tokens + made);
        else if (n <= SHORT_WORD)
            more = encode_short(e->tokenizer->bpe, text + at, (int)n, tokens + made);
        else
            DSC_TRY(encode_long(e, text + at, n, tokens + made, &more));
        made += more;
    }
    *count = made;
    return DSC_OK;
}

/* Where the next special token begins; `bytes` when there is none. */
static int64_t find_special(const uint8_t *text, int64_t bytes) {
    const int64_t length = sizeof DSC_END_OF_TEXT - 1;
    const uint8_t *p = text, *end = text + bytes;
    while (end - p >= length && (p = memchr(p, '<', (size_t)(end - p - length + 1)))) {
        if (memcmp(p, DSC_END_OF_TEXT, (size_t)length) == 0)
            return p - text;
        p++;
    }
    return bytes;
}

static dsc_status encode_bpe(dsc_encoder *e, const uint8_t *text, int64_t bytes, unsigned flags,
                             int32_t *tokens, int64_t *count) {
    int special = flags & DSC_ENCODE_SPECIAL && e->tokenizer->end_of_text >= 0;
    int64_t made = 0, more = 0;
    for (int64_t at = 0; at < bytes;) {
        int64_t length = special ? find_special(text + at, bytes - at) : bytes - at;
        DSC_TRY(encode_words(e, text + at, length, tokens + made, &more));
        made += more;
        at += length;
        if (at < bytes) {
            tokens[made++] = e->tokenizer->end_of_text;
            at += (int64_t)sizeof DSC_END_OF_TEXT - 1;
        }
    }
    *count = made;
    return DSC_OK;
}

dsc_status dsc_encoder_run(dsc_encoder *e, const uint8_t *text, int64_t bytes, unsigned flags,
                           int32_t *tokens, int64_t *count) {
    const dsc_tokenizer *t = e->tokenizer;
    if (t->bpe)
        return encode_bpe(e, text, bytes, flags, tokens, count);
    for (int64_t i = 0; i < bytes; i++) {
        tokens[i] = t->token_of[text[i]];
        if (tokens[i] < 0)
            return DSC_FAIL(
                DSC_E_INVALID,
                "the byte 0x%02x at position %lld is not among the %lld characters of the vocabulary",
                text[i], (long long)i, (long long)t->vocabulary);
    }
    *count = bytes;
    return DSC_OK;
}
