// Greedy tokens of llama.cpp, with all their logits: llama_tokens MODEL COUNT UBATCH FLASH CACHE < prompts > results
//
// Each line of the input is a prompt: numbers of tokens. For each of COUNT steps of each prompt, the output has the most
// probable token (int32) and the logits (float32). UBATCH is the number of tokens of a prompt that are computed at once,
// FLASH is 1 for llama.cpp's fused attention, and CACHE is 32 or 16, the bits of keys and values.

#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

enum { LENGTH = 2048, THREADS = 1 };

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    (void)data;
}

static void fail(const char *what) {
    fprintf(stderr, "llama_tokens: %s\n", what);
    exit(1);
}

static int32_t largest(const float *values, int count) {
    int best = 0;
    for (int at = 1; at < count; at++) {
        if (values[at] > values[best]) best = at;
    }
    return best;
}

static void generate(struct llama_context *context, int words, llama_token *tokens, int length, int count) {
    llama_memory_clear(llama_get_memory(context), true);
    if (llama_decode(context, llama_batch_get_one(tokens, length))) fail("llama_decode failed");
    for (int step = 0; step < count; step++) {
        const float *logits = llama_get_logits_ith(context, -1);
        llama_token token = largest(logits, words);
        fwrite(&token, sizeof token, 1, stdout);
        fwrite(logits, sizeof *logits, words, stdout);
        if (step + 1 < count && llama_decode(context, llama_batch_get_one(&token, 1))) fail("llama_decode failed");
    }
}

int main(int argc, char **argv) {
    if (argc != 6) fail("expected MODEL COUNT UBATCH FLASH CACHE");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) fail("the model cannot be loaded");
    struct llama_context_params options = llama_context_default_params();
    options.n_ctx = LENGTH;
    options.n_batch = LENGTH;
    options.n_ubatch = atoi(argv[3]);
    options.n_threads = options.n_threads_batch = THREADS;
    options.flash_attn_type = atoi(argv[4]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    options.type_k = options.type_v = atoi(argv[5]) == 32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    struct llama_context *context = llama_init_from_model(model, options);
    if (!context) fail("the context cannot be created");
    int words = llama_vocab_n_tokens(llama_model_get_vocab(model));
    static char line[16 * LENGTH];
    while (fgets(line, sizeof line, stdin)) {
        llama_token tokens[LENGTH];
        int length = 0;
        char *rest = line, *end;
        for (long token; length < LENGTH && (token = strtol(rest, &end, 10), end != rest); rest = end) {
            tokens[length++] = token;
        }
        if (length) generate(context, words, tokens, length, atoi(argv[2]));
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
