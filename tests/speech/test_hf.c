/* Speech models from Hugging Face folders: the same as from a ggml file, and errors of
   folders. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "small_whisper.h"
#include "speech/audio/mel.h"
#include "speech/whisper/whisper_file.h"
#include "support.h"

static shoal_context *context;
static made_model made;

static whisper_file *parse_good(const made_model *m) {
    whisper_file *file;
    if (sh_ggml_parse(context, "bytes", m->bytes, m->size, &file) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return file;
}

static void check_same(const whisper_file *a, const whisper_file *b) {
    const tokens *s = &a->tokens, *t = &b->tokens;
    assert_memory_equal(&a->sizes, &b->sizes, sizeof a->sizes);
    assert_memory_equal(a->mel_filters, b->mel_filters,
                        (size_t)a->sizes.mels * MEL_BINS * sizeof(float));
    assert_memory_equal(s->begin, t->begin, ((size_t)s->count + 1) * sizeof *s->begin);
    assert_memory_equal(s->bytes, t->bytes, s->begin[s->count]);
    assert_int_equal(s->suppress_count, t->suppress_count);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (int64_t i = 0; i < a->tensor_count; i++) {
        assert_string_equal(a->tensors[i].name, b->tensors[i].name);
        assert_true(sh_file_tensor_has_shape(&a->tensors[i], b->tensors[i].rank,
                                             b->tensors[i].shape));
        assert_memory_equal(a->tensors[i].data, b->tensors[i].data, a->tensors[i].bytes);
    }
}

static void folders_give_the_same_model(void **state) {
    whisper_file *model = parse_good(&made), *file;
    for (int shards = 0; shards <= 1; shards++) {
        const char *where = make_folder();
        char path[512];
        make_hf_folder(context, model, where, shards != 0);
        if (sh_whisper_file_open(context, where, &file) != SHOAL_OK)
            fail_msg("%s", shoal_context_message(context));
        check_same(model, file);
        sh_whisper_file_close(file);
        snprintf(path, sizeof path, "%s/config.json", where);
        assert_int_equal(sh_whisper_file_open(context, path, &file), SHOAL_OK);
        sh_whisper_file_close(file);
        remove_folder(where);
    }
    sh_whisper_file_close(model);
}

static shoal_status open_with(const char *where, const char *name, const char *text,
                              whisper_file **file) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", where, name);
    write_bytes_to(path, text, strlen(text));
    return sh_whisper_file_open(context, where, file);
}

static void alignment_heads_are_read(void **state) {
    static const char *const wrong[] = {"[[0, 99]]", "[[99, 0]]", "[[-1, 0]]", "[[0]]",
                                        "[0, 0]",    "7",         "[[0, 1.5]]"};
    whisper_file *model = parse_good(&made), *file;
    const char *where = make_folder();
    make_hf_folder(context, model, where, false);
    assert_int_equal(open_with(where, "generation_config.json",
                               "{\"alignment_heads\": [[0, 1], [0, 0]]}", &file),
                     SHOAL_OK);
    assert_int_equal(file->alignment_count, 2);
    assert_true(file->alignment[0].layer == 0 && file->alignment[0].head == 1);
    sh_whisper_file_close(file);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[100];
        snprintf(text, sizeof text, "{\"alignment_heads\": %s}", wrong[i]);
        assert_int_equal(open_with(where, "generation_config.json", text, &file),
                         SHOAL_BAD_FILE);
    }
    assert_int_equal(open_with(where, "generation_config.json",
                               "{\"alignment_heads\": null}", &file),
                     SHOAL_OK);
    assert_int_equal(file->alignment_count, 0);
    sh_whisper_file_close(file);
    remove_folder(where);
    sh_whisper_file_close(model);
}

static void lists_of_tokens_are_read(void **state) {
    whisper_file *model = parse_good(&made), *file;
    const char *where = make_folder();
    make_hf_folder(context, model, where, false);
    assert_int_equal(open_with(where, "generation_config.json",
                               "{\"suppress_tokens\": [7, 9], "
                               "\"begin_suppress_tokens\": [220]}",
                               &file),
                     SHOAL_OK);
    assert_int_equal(file->tokens.suppress_count, 8);
    assert_int_equal(file->tokens.suppress[1], 9);
    assert_int_equal(file->tokens.suppress_first_count, 1);
    sh_whisper_file_close(file);
    assert_int_equal(open_with(where, "generation_config.json",
                               "{\"suppress_tokens\": [51865]}", &file),
                     SHOAL_BAD_FILE);
    assert_int_equal(open_with(where, "generation_config.json",
                               "{\"suppress_tokens\": \"7\"}", &file),
                     SHOAL_BAD_FILE);
    assert_int_equal(open_with(where, "generation_config.json", "{}", &file), SHOAL_OK);
    sh_whisper_file_close(file);
    assert_int_equal(open_with(where, "added_tokens.json", "{\"<|en|>\": 50259}", &file),
                     SHOAL_OK);
    sh_whisper_file_close(file);
    assert_int_equal(open_with(where, "added_tokens.json", "{\"<|en|>\": 50258}", &file),
                     SHOAL_BAD_FILE);
    assert_int_equal(open_with(where, "added_tokens.json", "{}", &file), SHOAL_OK);
    sh_whisper_file_close(file);
    assert_int_equal(
        open_with(where, "tokenizer.json",
                  "{\"added_tokens\": [{\"id\": 1, \"content\": \"<|0.00|>\"}]}", &file),
        SHOAL_BAD_FILE);
    remove_folder(where);
    sh_whisper_file_close(model);
}

static const char good_config[] =
    "{\"model_type\": \"whisper\", \"activation_function\": \"gelu\", "
    "\"vocab_size\": 51865, \"max_source_positions\": 1500, \"d_model\": 384, "
    "\"encoder_attention_heads\": 6, \"encoder_layers\": 4, \"max_target_positions\": "
    "448, "
    "\"decoder_attention_heads\": 6, \"decoder_layers\": 4, \"num_mel_bins\": 80, "
    "\"encoder_ffn_dim\": 1536, \"decoder_ffn_dim\": 1536}";

static void configurations_are_checked(void **state) {
    static const char *const changes[][2] = {
        {"whisper", "bert"},
        {"gelu", "relu"},
        {"51865", "51867"},
        {"1500", "1501"},
        {"384", "0"},
        {"384", "-384"},
        {"384", "384.0"},
        {"384", "\"384\""},
        {"384", "99999999999999999999"},
        {"384", "4294967680"},
        {"heads\": 6", "heads\": 5"},
        {"layers\": 4", "layers\": 0"},
        {"448", "0"},
        {"80", "81"},
        {"1536", "1535"},
        {"d_model", "model_d"},
        {"num_mel_bins", "d_model"},
    };
    whisper_sizes sizes;
    assert_int_equal(sh_hf_parse_config(context, "c", good_config, strlen(good_config),
                                        &sizes),
                     SHOAL_OK);
    assert_int_equal(sizes.text_positions, 448);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char text[1024];
        const char *at = strstr(good_config, changes[i][0]);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_config), good_config,
                 changes[i][1], at + strlen(changes[i][0]));
        if (sh_hf_parse_config(context, "c", text, strlen(text), &sizes) !=
            SHOAL_BAD_FILE)
            fail_msg("accepted: %s", text);
    }
    for (size_t size = 0; size < strlen(good_config); size++)
        assert_int_equal(sh_hf_parse_config(context, "c", good_config, size, &sizes),
                         SHOAL_BAD_FILE);
}

static void names_are_mapped(void **state) {
    static const char *const names[][2] = {
        {"model.encoder.layers.3.self_attn.q_proj.weight",
         "encoder.blocks.3.attn.query.weight"},
        {"decoder.layers.11.encoder_attn_layer_norm.bias",
         "decoder.blocks.11.cross_attn_ln.bias"},
        {"model.decoder.layer_norm.weight", "decoder.ln.weight"},
        {"model.encoder.layer_norm.bias", "encoder.ln_post.bias"},
        {"model.encoder.conv1.weight", "encoder.conv1.weight"},
        {"model.decoder.embed_tokens.weight", "decoder.token_embedding.weight"},
    };
    static const char *const others[] = {"proj_out.weight",
                                         "model.encoder.layers.x.fc1.bias",
                                         "model.encoder.layers.1000.fc1.bias",
                                         "encoder.layers.1",
                                         "model.",
                                         ""};
    char text[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(sh_hf_canonical_name(names[i][0], text, sizeof text));
        assert_string_equal(text, names[i][1]);
        assert_false(sh_hf_canonical_name(names[i][0], text, 10));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(sh_hf_canonical_name(others[i], text, sizeof text));
}

static void failed_allocations_are_reported(void **state) {
    const char *where = make_folder();
    whisper_file *model = parse_good(&made);
    make_hf_folder(context, model, where, false);
    sh_whisper_file_close(model);
    for (int64_t n = 0;; n++) {
        counting_allocator memory = {0};
        const shoal_options options = counting_options(&memory);
        shoal_context *counted;
        assert_int_equal(shoal_context_create(&options, &counted), SHOAL_OK);
        int64_t live = memory.live;
        whisper_file *file = NULL, *other = NULL;
        memory.fail_at = memory.calls + n + 1;
        shoal_status status = sh_whisper_file_open(counted, where, &file);
        if (status == SHOAL_OK)
            status = sh_ggml_parse(counted, "bytes", made.bytes, made.size, &other);
        bool done = status == SHOAL_OK;
        assert_true(done || status == SHOAL_NO_MEMORY);
        sh_whisper_file_close(file);
        sh_whisper_file_close(other);
        assert_int_equal(memory.live, live);
        shoal_context_destroy(counted);
        if (done) {
            assert_true(n >= 3);
            break;
        }
    }
    remove_folder(where);
}

static int begin(void **state) {
    made = make_ggml(&(small_whisper){51865, true, 5, true, 0});
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int end(void **state) {
    free(made.bytes);
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_give_the_same_model),
        cmocka_unit_test(lists_of_tokens_are_read),
        cmocka_unit_test(alignment_heads_are_read),
        cmocka_unit_test(configurations_are_checked),
        cmocka_unit_test(names_are_mapped),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
