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
  std::string message;  // <any>: what depends on the machine or on who came first
  std::function<void(const Directory&)> prepare = {};
  std::map<std::string, std::string> env = {};
  std::string stdout_path = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// The same text, but for what stands at <any>.
bool says(std::string_view got, std::string_view wanted) {
  constexpr std::string_view kAny = "<any>";
  const size_t any = wanted.find(kAny);
  if (any == wanted.npos) return got == wanted;
  if (!got.starts_with(wanted.substr(0, any))) return false;
  for (size_t at = any; at <= got.size(); ++at)
    if (says(got.substr(at), wanted.substr(any + kAny.size()))) return true;
  return false;
}

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
  EXPECT_TRUE(says(result.err, "overlace: error: " + c.message + "\n")) << result.err << "wanted\n" << c.message;
  EXPECT_EQ(directory.entries(), files);
  EXPECT_EQ(shared_memory(), memory);
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

Case run_case(const char* name, std::vector<std::string> args, int exit, std::string message) {
  args.insert(args.begin(), "run");
  return {name, std::move(args), exit, std::move(message)};
}

const std::vector<Case>& option_cases() {
  static const std::vector<Case> cases = {
      {"no_subcommand", {}, 2, "A subcommand is required"},
      {"unknown_subcommand",
       {"ran"},
       2,
       "unknown subcommand ran, wanted run, doctor, trace, sim, plan, explain, tune, calibrate, gnn, bench, completion "
       "or help"},
      {"help_of_no_command", {"help", "sim", "runs"}, 2, "unknown subcommand runs, wanted run, compare, <any>"},
      {"help_behind_a_command", {"help", "doctor", "gpu"}, 2, "unknown subcommand gpu, wanted none"},
      {"completion_without_shell", {"completion"}, 2, "shell is required"},
      {"completion_shell", {"completion", "tcsh"}, 2, "completion: shell is tcsh, wanted bash, zsh or fish"},
      run_case("unknown_option", {"--rank", "2"}, 2, "The following arguments were not expected: 2 --rank"),
      run_case("stray_word", {"tiny"}, 2, "The following argument was not expected: tiny"),
      run_case("option_without_value", {"--ranks"}, 2, "--ranks: 1 required INT missing"),
      run_case("no_ranks", {"-n", "0"}, 2, "--ranks is 0, wanted 1 to 64"),
      run_case("negative_ranks", {"-n", "-2"}, 2, "--ranks is -2, wanted 1 to 64"),
      run_case("ranks_in_words", {"-n", "two"}, 2, "--ranks: it is two, wanted a whole number"),
      run_case("ranks_beyond_int64", {"-n", "99999999999999999999"}, 2,
               "--ranks: it is 99999999999999999999, wanted a whole number"),
      run_case("too_many_ranks", {"-n", "65"}, 2, "--ranks is 65, wanted 1 to 64"),
      run_case("ranks_do_not_divide_heads", {"-n", "3"}, 2,
               "tiny has 8 attention heads, which 3 ranks cannot share equally"),
      run_case("more_ranks_than_heads", {"-n", "16"}, 2,
               "tiny has 8 attention heads, which 16 ranks cannot share equally"),
      run_case("no_layers", {"--layers", "0"}, 2, "--layers is 0, wanted 1 to 4096"),
      run_case("more_layers_than_there_are", {"--layers", "3"}, 2, "layers is 3, wanted 1 to 2, the layers of tiny"),
      run_case("no_tokens", {"--tokens", "0"}, 2, "--tokens is 0, wanted 1 to 16777216"),
      run_case("absurd_tokens", {"--tokens", "999999999999"}, 2, "--tokens is 999999999999, wanted 1 to 16777216"),
      run_case("no_sequence", {"--sequence-length", "0"}, 2, "--sequence-length is 0, wanted 1 to 16777216"),
      run_case("tokens_not_whole_sequences", {"--tokens", "100", "--sequence-length", "33"}, 2,
               "--tokens is 100 and --sequence-length is 33, wanted a multiple of the latter"),
      run_case("dtype_without_stack", {"--dtype", "fp64"}, 2, "--dtype is fp64, wanted fp32, bf16 or fp16"),
      run_case("unknown_dtype", {"--dtype", "float"}, 2, "--dtype is float, wanted fp32, bf16 or fp16"),
      run_case("no_repetitions", {"--repeat", "0"}, 2, "--repeat is 0, wanted 1 to 1000"),
      run_case("seed_in_words", {"--seed", "abc"}, 2, "--seed: it is abc, wanted a whole number that is not negative"),
      run_case("seed_negative", {"--seed", "-1"}, 2, "--seed: it is -1, wanted a whole number that is not negative"),
      run_case("seed_too_large", {"--seed", "99999999999999999999"}, 2,
               "--seed: it is 99999999999999999999, wanted a whole number that is not negative"),
      run_case("tokens_with_a_fraction", {"--tokens", "10.5"}, 2, "--tokens: it is 10.5, wanted a whole number"),
      run_case("more_memory_than_there_is", {"--config", "Llama-3.1-70B", "--layers", "80", "--tokens", "1000000"}, 7,
               "Llama-3.1-70B with 80 layers, 1000000 tokens, 2 ranks takes about 4205.9 GiB, this host has <any> GiB; "
               "wanted fewer --layers or --tokens"),
      run_case("unknown_backend", {"--backend", "tpu"}, 2, "--backend is tpu, wanted auto, cpu or cuda_peer"),
      run_case("no_gpu", {"--backend", "cuda_peer"}, 3, "--backend is cuda_peer, but there is no usable GPU: <any>"),
      run_case("link_in_words", {"--link", "fast"}, 2,
               "link \"fast\": it has 1 parts; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; ns, "
               "us, ms, s), or none"),
      run_case("link_without_latency", {"--link", "2GB/s"}, 2,
               "link \"2GB/s\": it has 1 parts; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; ns, "
               "us, ms, s), or none"),
      run_case("link_without_rate", {"--link", "0GB/s,20us"}, 2,
               "link \"0GB/s,20us\": the rate is \"0GB/s\"; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per "
               "second; ns, us, ms, s), or none"),
      run_case("link_unit", {"--link", "2GB/s,20parsec"}, 2,
               "link \"2GB/s,20parsec\": the latency is \"20parsec\"; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, "
               "MB, GB per second; ns, us, ms, s), or none"),
      run_case("link_negative_latency", {"--link", "2GB/s,-1us"}, 2,
               "link \"2GB/s,-1us\": the latency is \"-1us\"; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB "
               "per second; ns, us, ms, s), or none"),
      run_case("unknown_family", {"--schedule", "fastest"}, 2,
               "ag_gemm: unknown family 'fastest' (known: library, serial, <any>)"),
      run_case("degree_zero", {"--schedule", "hetero_fused_1d:0"}, 2,
               "--schedule is hetero_fused_1d:0, wanted auto, <any> or a file ending in .json"),
      run_case("degree_in_words", {"--schedule", "hetero_fused_1d:x"}, 2,
               "--schedule is hetero_fused_1d:x, wanted auto, <any> or a file ending in .json"),
      run_case("degree_too_large", {"--schedule", "hetero_fused_1d:4096"}, 2, "degree is 4096, wanted 1 to 1024"),
      run_case("schedule_that_gives_no_result", {"--schedule", "limit"}, 2,
               "--schedule is limit, which measures a part and gives no result"),
      run_case("model_and_checkpoint", {"--config", "tiny", "--checkpoint", "x"}, 2,
               "--config is tiny and --checkpoint is x, wanted one of them: a checkpoint brings its own config.json"),
      run_case("nothing_after_dashes", {"-n", "2", "--"}, 2,
               "-- is followed by nothing, wanted a program and its arguments"),
      run_case("program_missing", {"-n", "2", "--", "./no-such-program"}, 5,
               "launch: cannot start \"./no-such-program\": No such file or directory"),
  };
  return cases;
}

const std::vector<Case>& plan_cases() {
  static const std::vector<Case> cases = {
      {"plan_without_shape", {"plan", "--m", "8"}, 2, "--n is 0, wanted at least 1"},
      {"plan_number",
       {"plan", "ag_gemm", "--m", "8", "--n", "8", "--k", "x"},
       2,
       "--k: it is x, wanted a whole number"},
      {"plan_operator",
       {"plan", "gemm", "--m", "8", "--n", "8", "--k", "8"},
       2,
       "operator is 'gemm', wanted ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm or "
       "embedding_a2a"},
      {"plan_machine",
       {"explain", "--m", "8", "--n", "8", "--k", "8", "--machine", "nowhere"},
       2,
       "machine: got nowhere, wanted a file that ends in .json or one of cpu2, h200x2, h200x2_calibrated, h200x4"},
      {"plan_ranks", {"plan", "--m", "8", "--n", "8", "--k", "8", "-n", "65"}, 2, "--ranks is 65, wanted 1 to 64"},
      {"plan_tier",
       {"plan", "--m", "8", "--n", "8", "--k", "8", "--tier", "guess"},
       2,
       "--tier is guess, wanted rule, recurrence, simulation or probe"},
      {"plan_activation",
       {"plan", "--m", "8", "--n", "8", "--k", "8", "--activation", "gelu"},
       2,
       "--activation is gelu, wanted none or swiglu"},
      {"plan_activation_of_operator",
       {"plan", "gemm_rs", "--m", "8", "--n", "8", "--k", "8", "--activation", "swiglu"},
       2,
       "gemm_rs M 8 N 8 K 8 G 4 bf16 swiglu: gemm_rs has no activation"},
      {"plan_activation_of_odd_columns",
       {"explain", "--m", "8", "--n", "7", "--k", "8", "--activation", "swiglu"},
       2,
       "ag_gemm M 8 N 7 K 8 G 4 bf16 swiglu: swiglu takes pairs of columns, wanted an even N"},
      {"plan_exchange",
       {"plan", "gemm_a2a", "--m", "8", "--n", "8", "--k", "8", "--exchange", "columns"},
       2,
       "--exchange is columns, wanted rows or cols"},
      {"plan_blocks",
       {"explain", "gemm_a2a", "--m", "8", "--n", "8", "--k", "8", "--exchange", "cols", "--blocks", "6,2"},
       2,
       "gemm_a2a M 8 N 8 K 8 G 4 bf16 cols 6 2: blocks[0] is 6, wanted a multiple of 4 above 0: as many columns for "
       "each rank"},
      {"plan_check", {"plan", "--check", "nowhere.json"}, 5, "cannot open nowhere.json: No such file or directory"},
      {"sim_without_shape", {"sim", "run"}, 2, "--m is 0, wanted at least 1"},
      {"sim_family",
       {"sim", "run", "--m", "8", "--n", "8", "--k", "8", "--family", "x"},
       2,
       "ag_gemm: unknown family 'x' (known: <any>)"},
      {"sim_ranks",
       {"sim", "run", "--m", "8", "--n", "8", "--k", "8", "-n", "70000"},
       2,
       "--ranks is 70000, wanted 1 to 65536"},
      {"sim_too_many_ranks", {"sim", "run", "--m", "8", "--n", "8", "--k", "8", "-n", "60000"}, 2, "S1: <any>"},
      {"sim_rows",
       {"sim", "run", "--m", "9000000000000000000", "--n", "8", "--k", "8"},
       2,
       "--m is 9000000000000000000, wanted at most 16777216"},
      {"plan_depth", {"plan", "--m", "8", "--n", "8", "--k", "9000000"}, 2, "--k is 9000000, wanted at most 524288"},
      {"sim_calls",
       {"sim", "run", "--m", "8", "--n", "8", "--k", "8", "--calls", "0"},
       2,
       "sim: --calls is 0, wanted 1 to 10000"},
      {"trace_diff_file", {"trace", "diff", "a.json", "b.json"}, 5, "cannot open a.json: No such file or directory"},
      {"trace_diff_match",
       {"trace", "diff", "a.json", "b.json", "--match", "name"},
       2,
       "--match is name, wanted id or kind"},
      {"trace_chakra", {"trace", "info", "nowhere.et"}, 5, "cannot open nowhere.et: No such file or directory"},
      {"sim_t3_dram", {"sim", "t3", "--dram", "0"}, 2, "--dram is 0, wanted more than 0, at most 1000000"},
      {"sim_graph", {"sim", "graph", "cnn"}, 2, "graph is cnn, wanted dlrm, transformer, moe, co2, gnn or offload"},
  };
  return cases;
}

const std::vector<Case>& environment_cases() {
  const auto with = [](const char* name, std::map<std::string, std::string> env, int exit, std::string message) {
    Case c = run_case(name, {}, exit, std::move(message));
    c.env = std::move(env);
    return c;
  };
  static const std::vector<Case> cases = {
      with("timeout_zero", {{"OVERLACE_TIMEOUT_S", "0"}}, 2, "OVERLACE_TIMEOUT_S is \"0\", wanted integer, 1 to 86400"),
      with("backend_variable", {{"OVERLACE_BACKEND", "tpu"}}, 2,
           "OVERLACE_BACKEND is \"tpu\", wanted auto, cpu, cuda_peer"),
      with("link_variable", {{"OVERLACE_LINK", "slow"}}, 2,
           "link \"slow\": it has 1 parts; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; ns, us, "
           "ms, s), or none"),
      with("rank_outside_world", {{"RANK", "5"}, {"WORLD_SIZE", "2"}}, 4,
           "<any>bootstrap: rank is 5 of 2 (torchrun), wanted 0 <= rank < size; accepted: overlace run -n N, "
           "torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_*, PMI_*) or srun (SLURM_*); on several "
           "hosts mpirun or srun with engine mpi, any of them with MASTER_ADDR and OVERLACE_SECRET, or a callback (a "
           "torch process group)"),
      with("heap_too_small", {{"OVERLACE_HEAP_BYTES", "64K"}}, 7,
           "<any>symmetric heap exhausted: <any>, total 65536, in use 0; raise heap_bytes"),
      with("trace_variable", {{"OVERLACE_TRACE", "trace.txt"}}, 2,
           "--trace is trace.txt, wanted a name ending in .json (Chrome), .pftrace or .perfetto-trace (Perfetto)"),
      with("world_of_words", {{"WORLD_SIZE", "two"}}, 2, "WORLD_SIZE is \"two\", wanted an integer >= 0"),
  };
  return cases;
}

Case schedule_case(const char* name, const std::string& text, int exit, std::string message) {
  Case c = run_case(name, {"--schedule", "s.json"}, exit, std::move(message));
  c.prepare = [text](const Directory& d) { d.write("s.json", text); };
  return c;
}

const std::vector<Case>& schedule_cases() {
  static const std::vector<Case> cases = {
      run_case("schedule_file_missing", {"--schedule", "none.json"}, 5,
               "cannot open none.json: No such file or directory"),
      schedule_case("schedule_empty", "", 5,
                    "s.json: line 1, column 1: syntax error while parsing value - unexpected end of input; expected "
                    "'[', '{', or a literal"),
      schedule_case("schedule_truncated", "{\"op\": \"ag_gemm\", \"tasks\": [", 5,
                    "s.json: line 1, column 28: syntax error while parsing value - unexpected end of input; expected "
                    "'[', '{', or a literal"),
      schedule_case("schedule_list", "[]", 2, "--schedule s.json: it is an array, wanted an object"),
      schedule_case(
          "schedule_without_fields", "{\"op\": \"ag_gemm\"}", 2,
          "--schedule s.json: schedule /: got {\"op\":\"ag_gemm\"}, wanted an object with \"overlace_schedule\""),
      schedule_case("schedule_op_is_a_number", "{\"op\": 7}", 2,
                    "--schedule s.json: schedule /: got {\"op\":7}, wanted an object with \"overlace_schedule\""),
      schedule_case("schedule_of_unknown_site", "{\"lm_head\": {}}", 2,
                    "--schedule s.json: there is no site lm_head, wanted some of qkv, o_proj, gate_up, down"),
      schedule_case("schedule_nested_too_deep", std::string(5000, '['), 5,
                    "s.json: line 1, column 129: nested deeper than 128 levels"),
      schedule_case("schedule_of_site_is_text", "{\"qkv\": \"library\"}", 2,
                    "--schedule s.json: schedule /: got \"library\", wanted an object"),
  };
  return cases;
}

Case config_case(const char* name, const std::string& text, int exit, std::string message) {
  Case c = run_case(name, {"--config", "./config.json", "-n", "2"}, exit, std::move(message));
  c.prepare = [text](const Directory& d) { d.write("config.json", text); };
  return c;
}

Case changed_config(const char* name, const char* key, const char* value, int exit, std::string message) {
  return config_case(name, small_config({{key, value}}), exit, std::move(message));
}

const std::vector<Case>& config_cases() {
  static const std::vector<Case> cases = {
      run_case("config_unknown_name", {"--config", "Llama-9"}, 2,
               "config \"Llama-9\": no such file and no shipped name, wanted a config.json or one of tiny, "
               "tiny-moe, Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B, Qwen3-32B, Mistral-7B-v0.1, Mixtral-8x7B, "
               "Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V3, GPT-3-175B"),
      run_case("experts_do_not_stream", {"--config", "tiny-moe", "--backend", "cpu", "--device-memory", "100MiB"}, 3,
               "device_bytes is 104857600, wanted 0: tiny-moe has experts, and those do not stream"),
      run_case("config_file_missing", {"--config", "./none.json"}, 5,
               "config \"./none.json\": no such file and no shipped name, wanted a config.json or one of tiny, "
               "tiny-moe, Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B, Qwen3-32B, Mistral-7B-v0.1, Mixtral-8x7B, "
               "Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V3, GPT-3-175B"),
      run_case("config_is_a_directory", {"--config", "/tmp"}, 5,
               "/tmp/config.json: cannot be opened, wanted a readable config.json"),
      config_case("config_empty", "", 5,
                  "./config.json: line 1, column 1: syntax error while parsing value - unexpected end of input; "
                  "expected '[', '{', or a literal"),
      config_case("config_truncated", small_config().substr(0, 40), 5,
                  "./config.json: line 1, column 40: syntax error while parsing object - unexpected end of input; "
                  "expected '}'"),
      config_case("config_is_a_list", "[1, 2]", 5, "./config.json: the document is an array, wanted an object"),
      config_case("config_nested_too_deep", std::string(100000, '{'), 5,
                  "./config.json: line 1, column 2: syntax error while parsing object key - unexpected '{'; expected "
                  "string literal"),
      config_case("config_twice_the_same_key", "{\"hidden_size\": 16, \"hidden_size\": 32}", 5,
                  "./config.json: line 1, column 33: key \"hidden_size\" occurs twice"),
      changed_config("config_without_hidden", "hidden_size", "", 2,
                     "./config.json: key \"hidden_size\" is missing, wanted an integer from 1 to 1048576"),
      changed_config("config_negative_hidden", "hidden_size", "-16", 2,
                     "./config.json: key \"hidden_size\" is -16, wanted an integer from 1 to 1048576"),
      changed_config("config_hidden_in_words", "hidden_size", "\"big\"", 2,
                     "./config.json: key \"hidden_size\" is \"big\", wanted an integer from 1 to 1048576"),
      changed_config("config_absurd_hidden", "hidden_size", "1000000000000000", 2,
                     "./config.json: key \"hidden_size\" is 1000000000000000, wanted an integer from 1 to 1048576"),
      changed_config("config_fractional_heads", "num_attention_heads", "2.5", 2,
                     "./config.json: key \"num_attention_heads\" is 2.5, wanted an integer from 1 to 65536"),
      changed_config("config_no_heads", "num_attention_heads", "0", 2,
                     "./config.json: key \"num_attention_heads\" is 0, wanted an integer from 1 to 65536"),
      changed_config("config_heads_do_not_divide", "num_attention_heads", "3", 2,
                     "./config.json: key \"hidden_size\" is 16, wanted a multiple of num_attention_heads 3"),
      changed_config("config_kv_heads_do_not_divide", "num_key_value_heads", "3", 2,
                     "./config.json: key \"num_attention_heads\" is 2, wanted a multiple of num_key_value_heads 3"),
      changed_config("config_odd_head", "head_dim", "7", 2,
                     "./config.json: the head dimension is 7, wanted an even number for RoPE"),
      changed_config("config_no_layers", "num_hidden_layers", "0", 2,
                     "./config.json: key \"num_hidden_layers\" is 0, wanted an integer from 1 to 4096"),
      changed_config("config_odd_intermediate", "intermediate_size", "33", 2,
                     "./config.json has intermediate size 33, which 2 ranks cannot share equally"),
      changed_config("config_unknown_model", "model_type", "\"mamba\"", 3,
                     "./config.json: key \"model_type\" is \"mamba\"; supported: llama, qwen2, qwen3, mistral, "
                     "mixtral, qwen2_moe, qwen3_moe, deepseek_v3, gpt2, gpt3"),
      changed_config("config_unknown_activation", "hidden_act", "\"tanhshrink\"", 3,
                     "./config.json: key \"hidden_act\" is \"tanhshrink\"; supported: silu"),
      changed_config("config_unknown_rope", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2}", 3,
                     "./config.json: key \"rope_scaling.rope_type\" is \"yarn\"; supported: default, linear, llama3"),
      changed_config("config_negative_eps", "rms_norm_eps", "-1", 2,
                     "./config.json: key \"rms_norm_eps\" is -1, wanted a positive number"),
      changed_config("config_zero_theta", "rope_theta", "0", 2,
                     "./config.json: key \"rope_theta\" is 0, wanted a positive number"),
  };
  return cases;
}

Case checkpoint_case(const char* name, const std::function<void(const Directory&)>& prepare, int exit,
                     std::string message) {
  Case c =
      run_case(name, {"--checkpoint", "ckpt", "--tokens", "8", "-n", "2", "--repeat", "1"}, exit, std::move(message));
  c.prepare = [prepare](const Directory& d) {
    d.write("ckpt/config.json", small_config());
    prepare(d);
  };
  return c;
}

Case weights_case(const char* name, const std::string& file, int exit, std::string message) {
  return checkpoint_case(
      name, [file](const Directory& d) { d.write("ckpt/model.safetensors", file); }, exit, std::move(message));
}

Case tensors_case(const char* name, const std::function<void(Tensors&)>& damage, int exit, std::string message) {
  Tensors tensors = small_tensors();
  damage(tensors);
  return weights_case(name, safetensors(tensors), exit, std::move(message));
}

const std::vector<Case>& checkpoint_cases() {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string good = safetensors(small_tensors());
  const std::string one = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":";
  static const std::vector<Case> cases = {
      run_case("checkpoint_missing", {"--checkpoint", "nowhere"}, 5,
               "config \"nowhere/config.json\": no such file and no shipped name, wanted a config.json or one of tiny, "
               "tiny-moe, Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B, Qwen3-32B, Mistral-7B-v0.1, Mixtral-8x7B, "
               "Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V3, GPT-3-175B"),
      checkpoint_case(
          "checkpoint_without_weights", [](const Directory&) {}, 5,
          "checkpoint ckpt: neither model.safetensors nor model.safetensors.index.json is there"),
      weights_case("weights_empty", "", 5,
                   "ckpt/model.safetensors: 0 bytes, wanted at least 8 for the header's length"),
      weights_case("weights_seven_bytes", "1234567", 5,
                   "ckpt/model.safetensors: 7 bytes, wanted at least 8 for the header's length"),
      weights_case("weights_header_longer_than_file", safetensors(small_tensors(), int64_t{1} << 60), 5,
                   "ckpt/model.safetensors: offset 0: header length 1152921504606846976, wanted at most 11253"),
      weights_case("weights_header_cut", good.substr(0, 100), 5,
                   "ckpt/model.safetensors: offset 0: header length 885, wanted at most 92"),
      weights_case("weights_data_cut", good.substr(0, good.size() - 5), 5,
                   "ckpt/model.safetensors: tensor \"model.layers.0.self_attn.v_proj.weight\": data_offsets is "
                   "[9344,10368], wanted begin <= end <= 10363, the file's bytes of data"),
      weights_case("weights_too_long", good + "abcd", 5,
                   "ckpt/model.safetensors: the tensors end at offset 11261, wanted the file's size 11265"),
      weights_case("weights_header_no_json", safetensors_raw("not json", ""), 5,
                   "ckpt/model.safetensors: line 1, column 2: syntax error while parsing value - invalid literal; last "
                   "read: 'no'"),
      weights_case("weights_header_is_a_list", safetensors_raw("[]", ""), 5,
                   "ckpt/model.safetensors: the header is an array, wanted an object"),
      weights_case("weights_outside_file", safetensors_raw(one + "[0,800]}}", floats(2)), 5,
                   "ckpt/model.safetensors: tensor \"a\": data_offsets is [0,800], wanted begin <= end <= 8, the "
                   "file's bytes of data"),
      weights_case("weights_negative_offset", safetensors_raw(one + "[-8,0]}}", floats(2)), 5,
                   "ckpt/model.safetensors: tensor \"a\": data_offsets is [-8,0], wanted two integers >= 0"),
      weights_case("weights_backwards", safetensors_raw(one + "[8,0]}}", floats(2)), 5,
                   "ckpt/model.safetensors: tensor \"a\": data_offsets is [8,0], wanted begin <= end <= 8, the file's "
                   "bytes of data"),
      weights_case("weights_hole", safetensors_raw(one + "[4,12]}}", floats(3)), 5,
                   "ckpt/model.safetensors: tensor \"a\" starts at offset 67, wanted 63 (a hole before it)"),
      tensors_case(
          "weights_tensor_missing", [=](Tensors& t) { t.erase(q); }, 5,
          "<any>ckpt/model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\" is missing"),
      tensors_case(
          "weights_wrong_shape",
          [=](Tensors& t) {
            t[q].shape = {8, 32};
          },
          5,
          "<any>ckpt/model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\" has shape (8, 32), "
          "wanted (16, 16)"),
      tensors_case(
          "weights_of_integers", [=](Tensors& t) { t[q].dtype = "I32"; }, 3,
          "<any>ckpt/model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\" has dtype I32, "
          "supported: F64, F32, F16, BF16"),
      tensors_case(
          "weights_of_unknown_dtype", [=](Tensors& t) { t[q].dtype = "F7"; }, 5,
          "ckpt/model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\": dtype is \"F7\", wanted a type "
          "of the safetensors format"),
      tensors_case(
          "weights_not_finite", [=](Tensors& t) { t[q].bytes.replace(0, 4, "\xff\xff\xff\x7f", 4); }, 5,
          "<any>ckpt/model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\": element (0, 0) is nan, "
          "wanted a "
          "finite fp32 number"),
  };
  return cases;
}

const std::vector<Case>& index_cases() {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  static const std::vector<Case> cases = {
      checkpoint_case(
          "index_names_missing_file",
          [=](const Directory& d) {
            d.write("ckpt/model.safetensors.index.json", "{\"weight_map\": {\"" + q + "\": \"part-1.safetensors\"}}");
          },
          5,
          "checkpoint ckpt: neither tensor \"model.layers.0.input_layernorm.weight\" nor "
          "\"layers.0.input_layernorm.weight\" is there, wanted a llama model"),
      checkpoint_case(
          "index_leaves_directory",
          [=](const Directory& d) {
            d.write("ckpt/model.safetensors.index.json", "{\"weight_map\": {\"" + q + "\": \"../../etc/passwd\"}}");
          },
          5,
          "ckpt/model.safetensors.index.json: file of tensor \"model.layers.0.self_attn.q_proj.weight\" is "
          "\"../../etc/passwd\", wanted a plain file name"),
      checkpoint_case(
          "index_without_map", [](const Directory& d) { d.write("ckpt/model.safetensors.index.json", "{}"); }, 5,
          "ckpt/model.safetensors.index.json: key \"weight_map\" is missing, wanted an object of tensor and file "
          "names"),
  };
  return cases;
}

Case input_case(const char* name, const std::string& file, int exit, std::string message) {
  Case c = run_case(name, {"--config", "./config.json", "-n", "2", "--input", "x.npy"}, exit, std::move(message));
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
  Case disagree = input_case("input_rows_are_not_tokens", good, 2, "--tokens is 8, but --input x.npy has 4 rows");
  disagree.args.insert(disagree.args.end(), {"--tokens", "8"});
  static const std::vector<Case> cases = {
      run_case("input_missing", {"--input", "none.npy"}, 5, "none.npy: open for reading: No such file or directory"),
      run_case("input_is_a_directory", {"--input", "/tmp"}, 5, "/tmp: not a regular file, wanted one"),
      input_case("input_empty", "", 5, "x.npy: 0 bytes, wanted at least 10 for an npy header"),
      input_case("input_not_npy", std::string(100, 'x'), 5, "x.npy: offset 0: wanted the npy magic"),
      input_case("input_future_version", "\x93NUMPY\x09" + good.substr(7), 3,
                 "x.npy: offset 6: npy version 9, wanted 1 or 2"),
      input_case("input_header_cut", good.substr(0, 20), 5,
                 "x.npy: offset 8: header length 118, wanted at most 10 of 20 bytes"),
      input_case("input_data_cut", good.substr(0, good.size() - 3), 5,
                 "x.npy: 253 bytes of data after offset 128, wanted 256 for shape (4, 16)"),
      input_case("input_too_long", good + "abcd", 5,
                 "x.npy: 260 bytes of data after offset 128, wanted 256 for shape (4, 16)"),
      input_case("input_of_integers", npy("(4, 16)", floats(64), "<i4"), 3,
                 "x.npy: dtype i32, wanted fp32, fp16 or fp64"),
      input_case(
          "input_big_endian", npy("(4, 16)", floats(64), ">f4"), 3,
          "x.npy: dtype '>f4' (big-endian), wanted one of '<f8', '<f4', '<f2', '<u2', '<i8', '<i4', '|i1', '|u1', "
          "'|b1'"),
      input_case("input_columns_first", npy("(4, 16)", floats(64), "<f4", "True"), 3,
                 "x.npy: fortran_order is True, wanted False (C order)"),
      input_case("input_of_one_dimension", npy("(64,)", floats(64)), 2,
                 "x.npy: 1 dimensions, wanted 2 (tokens, hidden)"),
      input_case("input_negative_rows", npy("(-4, 16)", floats(64)), 5,
                 "x.npy: shape (-4, 16), wanted sizes >= 0 of at most 1099511627776 elements"),
      input_case("input_absurd_shape", npy("(4611686018427387904, 16)", floats(64)), 5,
                 "x.npy: shape (4611686018427387904, 16), wanted sizes >= 0 of at most 1099511627776 elements"),
      input_case("input_wrong_hidden", npy("(4, 8)", floats(32)), 2,
                 "--input: x.npy has 8 columns, wanted the model's hidden size 16"),
      input_case("input_without_rows", npy("(0, 16)", ""), 2, "--input: x.npy has 0 rows, wanted 1 to 16777216"),
      input_case("input_not_finite", nan, 5, "x.npy: element (3, 14) is nan, wanted a finite number"),
      disagree,
  };
  return cases;
}

Case output_case(const char* name, const char* option, const char* file, int exit, std::string message) {
  Case c = run_case(name,
                    {"--config", "./config.json", "-n", "2", "--tokens", "8", "--repeat", "1", "--quiet", option, file},
                    exit, std::move(message));
  c.prepare = [](const Directory& d) { d.write("config.json", small_config()); };
  return c;
}

const std::vector<Case>& output_cases() {
  Case closed = output_case("stdout_full", "--json", "-", 5, "<any>cannot write to stdout: No space left on device");
  closed.stdout_path = "/dev/full";
  static const std::vector<Case> cases = {
      output_case("output_directory_missing", "--output", "no/y.npy", 5,
                  "--output: no/y.npy cannot be written: there is no directory no"),
      output_case("output_is_a_directory", "--output", "/tmp", 5, "--output: /tmp is a directory, wanted a file"),
      output_case("output_to_stdout", "--output", "-", 2,
                  "- (stdout) is taken by --json only, wanted a file for --output, --trace, --report"),
      output_case("json_directory_missing", "--json", "no/r.json", 5,
                  "--json: no/r.json cannot be written: there is no directory no"),
      output_case(
          "trace_of_unknown_kind", "--trace", "trace.txt", 2,
          "--trace is trace.txt, wanted a name ending in .json (Chrome), .pftrace or .perfetto-trace (Perfetto)"),
      output_case("report_directory_missing", "--report", "/nowhere/r.html", 5,
                  "--report: /nowhere/r.html cannot be written: there is no directory /nowhere"),
      output_case("disk_full_output", "--output", "/dev/full", 5,
                  "<any>cannot write /dev/full: No space left on device"),
      output_case("disk_full_json", "--json", "/dev/full", 5, "<any>cannot write /dev/full: No space left on device"),
      output_case("disk_full_report", "--report", "/dev/full", 5,
                  "<any>cannot write /dev/full: No space left on device"),
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
      {"trace_without_verb", {"trace"}, 2, "A subcommand is required"},
      {"trace_file_missing", {"trace", "info", "none.json"}, 5, "cannot open none.json: No such file or directory"},
      with({"trace_is_garbage", {"trace", "info", "t.json"}, 5, "t.json: neither a Perfetto nor a Chrome JSON trace"},
           "garbage"),
      with({"trace_is_truncated",
            {"trace", "info", "t.json"},
            5,
            "t.json: line 1, column 24: syntax error while parsing value - unexpected end of input; expected '[', '{', "
            "or a literal"},
           "{\"traceEvents\": [{\"ph\": "),
      with({"trace_convert_to_unknown_kind",
            {"trace", "convert", "t.json", "t.txt"},
            2,
            "trace file t.txt: wanted a name that ends in .json, .pftrace, .perfetto-trace or .et"},
           "{\"traceEvents\": []}"),
      {"sim_run_trace_of_unknown_kind",
       {"sim", "run", "--family", "library", "--m", "64", "--n", "64", "--k", "64", "--trace", "t.txt"},
       2,
       "trace file t.txt: wanted a name that ends in .json, .pftrace, .perfetto-trace or .et"},
      {"sim_graph_trace_of_unknown_kind",
       {"sim", "graph", "co2", "--trace", "t.foo"},
       2,
       "trace file t.foo: wanted a name that ends in .json, .pftrace, .perfetto-trace or .et"},
  };
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Options, BadInput, testing::ValuesIn(option_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Environment, BadInput, testing::ValuesIn(environment_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Schedules, BadInput, testing::ValuesIn(schedule_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Configs, BadInput, testing::ValuesIn(config_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Checkpoints, BadInput, testing::ValuesIn(checkpoint_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Indices, BadInput, testing::ValuesIn(index_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Inputs, BadInput, testing::ValuesIn(input_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Outputs, BadInput, testing::ValuesIn(output_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Plans, BadInput, testing::ValuesIn(plan_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Traces, BadInput, testing::ValuesIn(trace_cases()), case_name);

}  // namespace
}  // namespace overlace::cli_test
