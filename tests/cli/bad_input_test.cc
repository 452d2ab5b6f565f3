// Bad input of every kind: the exit status, a message with what was got and wanted, nothing left behind, in time.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "tests/cli/support/command.h"
#include "tests/cli/support/files.h"

namespace overlace::cli_test {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> args;
  int exit;
  std::vector<std::string> fragments;  // all of them are part of the message
  std::function<void(const Directory&)> prepare = {};
  std::map<std::string, std::string> env = {};
  std::string stdout_path = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class BadInput : public testing::TestWithParam<Case> {};

TEST_P(BadInput, IsRefusedCleanly) {
  const Case& c = GetParam();
  Directory directory;
  if (c.prepare) c.prepare(directory);
  const auto files = directory.entries();
  const auto memory = shared_memory();
  Command command;
  command.args = c.args;
  command.env = c.env;
  command.env.emplace("CUDA_VISIBLE_DEVICES", "");
  command.env.emplace("OVERLACE_TIMEOUT_S", "20");
  command.directory = directory.path();
  command.stdout_path = c.stdout_path;
  const Result result = run(command);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit, c.exit) << result.err;
  EXPECT_EQ(result.err.rfind("overlace: error: ", 0), 0u) << result.err;
  EXPECT_EQ(result.err.find("overlace: error: ", 1), std::string::npos) << "said twice: " << result.err;
  for (const std::string& fragment : c.fragments)
    EXPECT_NE(result.err.find(fragment), std::string::npos) << fragment << "\nis not in\n" << result.err;
  EXPECT_EQ(directory.entries(), files);
  EXPECT_EQ(shared_memory(), memory);
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

Case run_case(const char* name, std::vector<std::string> args, int exit, std::vector<std::string> fragments) {
  args.insert(args.begin(), "run");
  return {name, std::move(args), exit, std::move(fragments)};
}

const std::vector<Case>& option_cases() {
  static const std::vector<Case> cases = {
      {"no_subcommand", {}, 2, {"subcommand"}},
      {"unknown_subcommand", {"ran"}, 2, {"ran", "run, doctor or trace"}},
      run_case("unknown_option", {"--rank", "2"}, 2, {"--rank"}),
      run_case("stray_word", {"tiny"}, 2, {"tiny"}),
      run_case("option_without_value", {"--ranks"}, 2, {"--ranks"}),
      run_case("no_ranks", {"-n", "0"}, 2, {"--ranks is 0", "1 to 64"}),
      run_case("negative_ranks", {"-n", "-2"}, 2, {"--ranks is -2", "1 to 64"}),
      run_case("ranks_in_words", {"-n", "two"}, 2, {"two", "--ranks"}),
      run_case("ranks_beyond_int64", {"-n", "99999999999999999999"}, 2, {"99999999999999999999"}),
      run_case("too_many_ranks", {"-n", "65"}, 2, {"--ranks is 65", "1 to 64"}),
      run_case("ranks_do_not_divide_heads", {"-n", "3"}, 2, {"8 attention heads", "3 ranks"}),
      run_case("more_ranks_than_heads", {"-n", "16"}, 2, {"8 attention heads", "16 ranks"}),
      run_case("no_layers", {"--layers", "0"}, 2, {"--layers is 0", "1 to"}),
      run_case("more_layers_than_there_are", {"--layers", "3"}, 2, {"3", "1 to 2"}),
      run_case("no_tokens", {"--tokens", "0"}, 2, {"--tokens is 0", "1 to"}),
      run_case("absurd_tokens", {"--tokens", "999999999999"}, 2, {"--tokens is 999999999999", "1 to"}),
      run_case("no_sequence", {"--sequence-length", "0"}, 2, {"--sequence-length is 0"}),
      run_case("tokens_not_whole_sequences", {"--tokens", "100", "--sequence-length", "33"}, 2, {"100", "33"}),
      run_case("dtype_without_stack", {"--dtype", "fp64"}, 2, {"fp64", "fp32, bf16 or fp16"}),
      run_case("unknown_dtype", {"--dtype", "float"}, 2, {"float", "fp32, bf16 or fp16"}),
      run_case("no_repetitions", {"--repeat", "0"}, 2, {"--repeat is 0", "1 to"}),
      run_case("seed_in_words", {"--seed", "abc"}, 2, {"abc", "--seed"}),
      run_case("seed_negative", {"--seed", "-1"}, 2, {"-1", "--seed", "not negative"}),
      run_case("seed_too_large", {"--seed", "99999999999999999999"}, 2, {"99999999999999999999", "--seed"}),
      run_case("tokens_with_a_fraction", {"--tokens", "10.5"}, 2, {"10.5", "--tokens", "whole number"}),
      run_case("more_memory_than_there_is", {"--config", "Llama-3.1-70B", "--layers", "80", "--tokens", "1000000"}, 7,
               {"Llama-3.1-70B", "80 layers", "GiB", "this host has"}),
      run_case("unknown_backend", {"--backend", "tpu"}, 2, {"tpu", "auto, cpu or cuda_peer"}),
      run_case("no_gpu", {"--backend", "cuda_peer"}, 3, {"cuda_peer", "no usable GPU"}),
      run_case("link_in_words", {"--link", "fast"}, 2, {"fast", "2GB/s,20us"}),
      run_case("link_without_latency", {"--link", "2GB/s"}, 2, {"2GB/s", "2GB/s,20us"}),
      run_case("link_without_rate", {"--link", "0GB/s,20us"}, 2, {"0GB/s"}),
      run_case("link_unit", {"--link", "2GB/s,20parsec"}, 2, {"20parsec"}),
      run_case("link_negative_latency", {"--link", "2GB/s,-1us"}, 2, {"-1us"}),
      run_case("unknown_family", {"--schedule", "fastest"}, 2, {"fastest", "library", "uniform_fused_2d"}),
      run_case("degree_zero", {"--schedule", "hetero_fused_1d:0"}, 2, {"hetero_fused_1d:0", "degree >= 1"}),
      run_case("degree_in_words", {"--schedule", "hetero_fused_1d:x"}, 2, {"hetero_fused_1d:x", "degree >= 1"}),
      run_case("degree_too_large", {"--schedule", "hetero_fused_1d:4096"}, 2, {"4096", "1 to 1024"}),
      run_case("schedule_that_gives_no_result", {"--schedule", "limit"}, 2, {"limit", "no result"}),
      run_case("model_and_checkpoint", {"--config", "tiny", "--checkpoint", "x"}, 2,
               {"--config is tiny", "one of them"}),
      run_case("nothing_after_dashes", {"-n", "2", "--"}, 2, {"--", "program"}),
      run_case("program_missing", {"-n", "2", "--", "./no-such-program"}, 5, {"no-such-program"}),
  };
  return cases;
}

const std::vector<Case>& environment_cases() {
  const auto with = [](const char* name, std::map<std::string, std::string> env, int exit,
                       std::vector<std::string> fragments) {
    Case c = run_case(name, {}, exit, std::move(fragments));
    c.env = std::move(env);
    return c;
  };
  static const std::vector<Case> cases = {
      with("timeout_zero", {{"OVERLACE_TIMEOUT_S", "0"}}, 2, {"OVERLACE_TIMEOUT_S", "0", "1 to 86400"}),
      with("backend_variable", {{"OVERLACE_BACKEND", "tpu"}}, 2, {"OVERLACE_BACKEND", "tpu", "cuda_peer"}),
      with("link_variable", {{"OVERLACE_LINK", "slow"}}, 2, {"slow", "2GB/s,20us"}),
      with("rank_outside_world", {{"RANK", "5"}, {"WORLD_SIZE", "2"}}, 4, {"5", "2"}),
      with("heap_too_small", {{"OVERLACE_HEAP_BYTES", "64K"}}, 7, {"heap"}),
      with("trace_variable", {{"OVERLACE_TRACE", "trace.txt"}}, 2, {"trace.txt", ".pftrace"}),
      with("world_of_words", {{"WORLD_SIZE", "two"}}, 2, {"WORLD_SIZE", "two"}),
  };
  return cases;
}

Case schedule_case(const char* name, const std::string& text, int exit, std::vector<std::string> fragments) {
  Case c = run_case(name, {"--schedule", "s.json"}, exit, std::move(fragments));
  c.prepare = [text](const Directory& d) { d.write("s.json", text); };
  return c;
}

const std::vector<Case>& schedule_cases() {
  static const std::vector<Case> cases = {
      run_case("schedule_file_missing", {"--schedule", "none.json"}, 5, {"none.json"}),
      schedule_case("schedule_empty", "", 5, {"s.json"}),
      schedule_case("schedule_truncated", "{\"op\": \"ag_gemm\", \"tasks\": [", 5, {"s.json"}),
      schedule_case("schedule_list", "[]", 2, {"s.json", "array", "object"}),
      schedule_case("schedule_without_fields", "{\"op\": \"ag_gemm\"}", 2, {"s.json"}),
      schedule_case("schedule_op_is_a_number", "{\"op\": 7}", 2, {"s.json", "op"}),
      schedule_case("schedule_of_unknown_site", "{\"lm_head\": {}}", 2, {"s.json", "lm_head", "qkv"}),
      schedule_case("schedule_nested_too_deep", std::string(5000, '['), 5, {"s.json"}),
      schedule_case("schedule_of_site_is_text", "{\"qkv\": \"library\"}", 2, {"s.json"}),
  };
  return cases;
}

Case config_case(const char* name, const std::string& text, int exit, std::vector<std::string> fragments) {
  Case c = run_case(name, {"--config", "./config.json", "-n", "2"}, exit, std::move(fragments));
  c.prepare = [text](const Directory& d) { d.write("config.json", text); };
  return c;
}

Case changed_config(const char* name, const char* key, const char* value, int exit,
                    std::vector<std::string> fragments) {
  return config_case(name, small_config({{key, value}}), exit, std::move(fragments));
}

const std::vector<Case>& config_cases() {
  static const std::vector<Case> cases = {
      run_case("config_unknown_name", {"--config", "Llama-9"}, 2, {"Llama-9", "tiny", "Qwen3-8B"}),
      run_case("config_file_missing", {"--config", "./none.json"}, 5, {"none.json"}),
      run_case("config_is_a_directory", {"--config", "/tmp"}, 5, {"/tmp"}),
      config_case("config_empty", "", 5, {"config.json"}),
      config_case("config_truncated", small_config().substr(0, 40), 5, {"config.json"}),
      config_case("config_is_a_list", "[1, 2]", 5, {"config.json", "array", "object"}),
      config_case("config_nested_too_deep", std::string(100000, '{'), 5, {"config.json"}),
      config_case("config_twice_the_same_key", "{\"hidden_size\": 16, \"hidden_size\": 32}", 5, {"hidden_size"}),
      changed_config("config_without_hidden", "hidden_size", "", 2, {"hidden_size", "missing"}),
      changed_config("config_negative_hidden", "hidden_size", "-16", 2, {"hidden_size", "-16"}),
      changed_config("config_hidden_in_words", "hidden_size", "\"big\"", 2, {"hidden_size", "big"}),
      changed_config("config_absurd_hidden", "hidden_size", "1000000000000000", 2, {"hidden_size"}),
      changed_config("config_fractional_heads", "num_attention_heads", "2.5", 2, {"num_attention_heads", "2.5"}),
      changed_config("config_no_heads", "num_attention_heads", "0", 2, {"num_attention_heads", "0"}),
      changed_config("config_heads_do_not_divide", "num_attention_heads", "3", 2, {"16", "3"}),
      changed_config("config_kv_heads_do_not_divide", "num_key_value_heads", "3", 2, {"2", "3"}),
      changed_config("config_odd_head", "head_dim", "7", 2, {"7", "even"}),
      changed_config("config_no_layers", "num_hidden_layers", "0", 2, {"num_hidden_layers", "0"}),
      changed_config("config_odd_intermediate", "intermediate_size", "33", 2, {"33", "2 ranks"}),
      changed_config("config_unknown_model", "model_type", "\"mamba\"", 3, {"mamba", "llama"}),
      changed_config("config_unknown_activation", "hidden_act", "\"tanhshrink\"", 3, {"hidden_act", "tanhshrink"}),
      changed_config("config_unknown_rope", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2}", 3, {"yarn"}),
      changed_config("config_negative_eps", "rms_norm_eps", "-1", 2, {"rms_norm_eps", "-1"}),
      changed_config("config_zero_theta", "rope_theta", "0", 2, {"rope_theta", "0"}),
  };
  return cases;
}

Case checkpoint_case(const char* name, const std::function<void(const Directory&)>& prepare, int exit,
                     std::vector<std::string> fragments) {
  Case c =
      run_case(name, {"--checkpoint", "ckpt", "--tokens", "8", "-n", "2", "--repeat", "1"}, exit, std::move(fragments));
  c.prepare = [prepare](const Directory& d) {
    d.write("ckpt/config.json", small_config());
    prepare(d);
  };
  return c;
}

Case weights_case(const char* name, const std::string& file, int exit, std::vector<std::string> fragments) {
  return checkpoint_case(
      name, [file](const Directory& d) { d.write("ckpt/model.safetensors", file); }, exit, std::move(fragments));
}

Case tensors_case(const char* name, const std::function<void(Tensors&)>& damage, int exit,
                  std::vector<std::string> fragments) {
  Tensors tensors = small_tensors();
  damage(tensors);
  return weights_case(name, safetensors(tensors), exit, std::move(fragments));
}

const std::vector<Case>& checkpoint_cases() {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string good = safetensors(small_tensors());
  const std::string one = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":";
  static const std::vector<Case> cases = {
      run_case("checkpoint_missing", {"--checkpoint", "nowhere"}, 5, {"nowhere"}),
      checkpoint_case("checkpoint_without_weights", [](const Directory&) {}, 5, {"ckpt", "model.safetensors"}),
      weights_case("weights_empty", "", 5, {"model.safetensors", "0 bytes", "8"}),
      weights_case("weights_seven_bytes", "1234567", 5, {"model.safetensors", "7 bytes"}),
      weights_case("weights_header_longer_than_file", safetensors(small_tensors(), int64_t{1} << 60), 5,
                   {"header length", "1152921504606846976"}),
      weights_case("weights_header_cut", good.substr(0, 100), 5, {"header length"}),
      weights_case("weights_data_cut", good.substr(0, good.size() - 5), 5, {"model.safetensors", "offset"}),
      weights_case("weights_too_long", good + "abcd", 5, {"model.safetensors", "size"}),
      weights_case("weights_header_no_json", safetensors_raw("not json", ""), 5, {"model.safetensors"}),
      weights_case("weights_header_is_a_list", safetensors_raw("[]", ""), 5, {"array", "object"}),
      weights_case("weights_outside_file", safetensors_raw(one + "[0,800]}}", floats(2)), 5, {"\"a\""}),
      weights_case("weights_negative_offset", safetensors_raw(one + "[-8,0]}}", floats(2)), 5,
                   {"\"a\"", "data_offsets"}),
      weights_case("weights_backwards", safetensors_raw(one + "[8,0]}}", floats(2)), 5, {"\"a\""}),
      weights_case("weights_hole", safetensors_raw(one + "[4,12]}}", floats(3)), 5, {"\"a\"", "hole"}),
      tensors_case("weights_tensor_missing", [=](Tensors& t) { t.erase(q); }, 5, {"q_proj", "missing"}),
      tensors_case("weights_wrong_shape",
                   [=](Tensors& t) {
                     t[q].shape = {8, 32};
                   },
                   5, {"q_proj", "8, 32", "16, 16"}),
      tensors_case("weights_of_integers", [=](Tensors& t) { t[q].dtype = "I32"; }, 3, {"q_proj", "I32", "BF16"}),
      tensors_case("weights_of_unknown_dtype", [=](Tensors& t) { t[q].dtype = "F7"; }, 5, {"q_proj", "F7"}),
      tensors_case("weights_not_finite", [=](Tensors& t) { t[q].bytes.replace(0, 4, "\xff\xff\xff\x7f", 4); }, 5,
                   {"q_proj", "finite"}),
      checkpoint_case("index_names_missing_file",
                      [=](const Directory& d) {
                        d.write("ckpt/model.safetensors.index.json",
                                "{\"weight_map\": {\"" + q + "\": \"part-1.safetensors\"}}");
                      },
                      5, {"ckpt"}),
      checkpoint_case("index_leaves_directory",
                      [=](const Directory& d) {
                        d.write("ckpt/model.safetensors.index.json",
                                "{\"weight_map\": {\"" + q + "\": \"../../etc/passwd\"}}");
                      },
                      5, {"../../etc/passwd", "plain file name"}),
      checkpoint_case("index_without_map",
                      [](const Directory& d) { d.write("ckpt/model.safetensors.index.json", "{}"); }, 5,
                      {"weight_map", "missing"}),
  };
  return cases;
}

Case input_case(const char* name, const std::string& file, int exit, std::vector<std::string> fragments) {
  Case c = run_case(name, {"--config", "./config.json", "-n", "2", "--input", "x.npy"}, exit, std::move(fragments));
  c.prepare = [file](const Directory& d) {
    d.write("config.json", small_config());
    d.write("x.npy", file);
  };
  return c;
}

const std::vector<Case>& input_cases() {
  const std::string good = npy("(4, 16)", floats(64));
  std::string nan = good;
  nan.replace(nan.size() - 8, 4, "\x00\x00\xc0\x7f", 4);
  Case disagree = input_case("input_rows_are_not_tokens", good, 2, {"--tokens is 8", "4 rows"});
  disagree.args.insert(disagree.args.end(), {"--tokens", "8"});
  static const std::vector<Case> cases = {
      run_case("input_missing", {"--input", "none.npy"}, 5, {"none.npy"}),
      run_case("input_is_a_directory", {"--input", "/tmp"}, 5, {"/tmp"}),
      input_case("input_empty", "", 5, {"x.npy", "0 bytes"}),
      input_case("input_not_npy", std::string(100, 'x'), 5, {"x.npy", "magic"}),
      input_case("input_future_version", "\x93NUMPY\x09" + good.substr(7), 3, {"version 9"}),
      input_case("input_header_cut", good.substr(0, 20), 5, {"x.npy", "header length"}),
      input_case("input_data_cut", good.substr(0, good.size() - 3), 5, {"253 bytes", "256"}),
      input_case("input_too_long", good + "abcd", 5, {"260 bytes", "256"}),
      input_case("input_of_integers", npy("(4, 16)", floats(64), "<i4"), 3, {"<i4", "<f4"}),
      input_case("input_big_endian", npy("(4, 16)", floats(64), ">f4"), 3, {">f4", "<f4"}),
      input_case("input_columns_first", npy("(4, 16)", floats(64), "<f4", "True"), 3, {"fortran_order"}),
      input_case("input_of_one_dimension", npy("(64,)", floats(64)), 2, {"1 dimensions", "2"}),
      input_case("input_negative_rows", npy("(-4, 16)", floats(64)), 5, {"x.npy"}),
      input_case("input_absurd_shape", npy("(4611686018427387904, 16)", floats(64)), 5, {"4611686018427387904"}),
      input_case("input_wrong_hidden", npy("(4, 8)", floats(32)), 2, {"8 columns", "16"}),
      input_case("input_without_rows", npy("(0, 16)", ""), 2, {"0 rows"}),
      input_case("input_not_finite", nan, 5, {"finite"}),
      disagree,
  };
  return cases;
}

Case output_case(const char* name, const char* option, const char* file, int exit, std::vector<std::string> fragments) {
  Case c = run_case(name,
                    {"--config", "./config.json", "-n", "2", "--tokens", "8", "--repeat", "1", "--quiet", option, file},
                    exit, std::move(fragments));
  c.prepare = [](const Directory& d) { d.write("config.json", small_config()); };
  return c;
}

const std::vector<Case>& output_cases() {
  Case closed = output_case("stdout_full", "--json", "-", 5, {"stdout", "No space left"});
  closed.stdout_path = "/dev/full";
  static const std::vector<Case> cases = {
      output_case("output_directory_missing", "--output", "no/y.npy", 5, {"no/y.npy", "no directory no"}),
      output_case("output_is_a_directory", "--output", "/tmp", 5, {"/tmp", "directory"}),
      output_case("output_to_stdout", "--output", "-", 2, {"--output", "--json"}),
      output_case("json_directory_missing", "--json", "no/r.json", 5, {"no/r.json"}),
      output_case("trace_of_unknown_kind", "--trace", "trace.txt", 2, {"trace.txt", ".pftrace"}),
      output_case("report_directory_missing", "--report", "/nowhere/r.html", 5, {"/nowhere"}),
      output_case("disk_full_output", "--output", "/dev/full", 5, {"/dev/full", "No space left"}),
      output_case("disk_full_json", "--json", "/dev/full", 5, {"/dev/full", "No space left"}),
      output_case("disk_full_report", "--report", "/dev/full", 5, {"/dev/full", "No space left"}),
      closed,
  };
  return cases;
}

const std::vector<Case>& trace_cases() {
  const auto with = [](Case c, const std::string& text) {
    c.prepare = [text](const Directory& d) { d.write("t.json", text); };
    return c;
  };
  static const std::vector<Case> cases = {
      {"trace_without_verb", {"trace"}, 2, {"subcommand"}},
      {"trace_file_missing", {"trace", "info", "none.json"}, 5, {"none.json"}},
      with({"trace_is_garbage", {"trace", "info", "t.json"}, 5, {"t.json"}}, "garbage"),
      with({"trace_is_truncated", {"trace", "info", "t.json"}, 5, {"t.json"}}, "{\"traceEvents\": [{\"ph\": "),
      with({"trace_convert_to_unknown_kind", {"trace", "convert", "t.json", "t.txt"}, 2, {"t.txt", ".pftrace"}},
           "{\"traceEvents\": []}"),
  };
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Options, BadInput, testing::ValuesIn(option_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Environment, BadInput, testing::ValuesIn(environment_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Schedules, BadInput, testing::ValuesIn(schedule_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Configs, BadInput, testing::ValuesIn(config_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Checkpoints, BadInput, testing::ValuesIn(checkpoint_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Inputs, BadInput, testing::ValuesIn(input_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Outputs, BadInput, testing::ValuesIn(output_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Traces, BadInput, testing::ValuesIn(trace_cases()), case_name);

}  // namespace
}  // namespace overlace::cli_test
