// bench_offload: all layers of a model whose weights stream into a device, beside the same layers resident there, and
// beside plain copies of as many bytes from pinned memory:
//   bench_offload [--config Qwen3-32B] [--layers N] [--tokens 16384,1024] [--sequence-length N] [--micro-batch N]
//                 [--dtype bf16] [--device-memory-mib N] [--checkpoint DIR] [--weights host|disk] [--oracle-layers N]
//                 [--passes N] [--repetitions N] [--verify-only] [--plain-attention] [--cpu] [--out records.jsonl]
//                 [--git COMMIT]
// One rank. --layers 0: all; --sequence-length 0: 4096 or all tokens. The first layers, resident and so that all of
// them stream, are compared with the fp64 oracle (--oracle-layers 0: not, and records say so); of all layers what
// streams must have the bits of what is resident. What is wrong has no times. A pass is timed behind one that is not,
// without a pause between them, so that as much is brought in it as is used. GPUs without cuDNN's attention are timed
// with --plain-attention only: its computation is too slow to be compared with copies. Exit 0: all right; 1: something
// is wrong.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "bench/common/arguments.h"
#include "bench/common/device.h"
#include "bench/common/record.h"
#include "bench/common/team_crew.h"
#include "overlace/runtime.h"
#include "src/base/half.h"
#include "src/base/statistics.h"
#include "src/exec/run.h"
#include "src/model/device.h"
#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "src/runtime/backend.h"
#include "src/spec/operators.h"

namespace overlace::bench {
namespace {

using base::Json;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string config = "Qwen3-32B", dtype = "bf16", checkpoint, weights = "host";
  std::vector<std::string> tokens = {"16384", "1024"};
  int layers = 0, sequence_length = 0, micro_batch = 0, device_memory_mib = 16384, oracle_layers = 3;
  int passes = 2, repetitions = 5;
  bool cpu = false, verify_only = false, plain_attention = false;
  RunFacts run;
};

Options parse(int argc, char** argv) {
  Options o;
  Arguments arguments(&o.run);
  arguments.add("--config", &o.config);
  arguments.add("--layers", &o.layers, 0);
  arguments.add("--tokens", &o.tokens);
  arguments.add("--sequence-length", &o.sequence_length, 0);
  arguments.add("--micro-batch", &o.micro_batch, 0);
  arguments.add("--dtype", &o.dtype);
  arguments.add("--device-memory-mib", &o.device_memory_mib, 1);
  arguments.add("--checkpoint", &o.checkpoint);
  arguments.add("--weights", &o.weights);
  arguments.add("--oracle-layers", &o.oracle_layers, 0);
  arguments.add("--passes", &o.passes, 1);
  arguments.add("--repetitions", &o.repetitions, 1);
  arguments.add("--cpu", &o.cpu);
  arguments.add("--verify-only", &o.verify_only);
  arguments.add("--plain-attention", &o.plain_attention);
  arguments.parse(argc, argv);
  if (o.weights != "host" && o.weights != "disk")
    throw_error(Errc::invalid_argument, base::format("--weights is {}, wanted host or disk", o.weights));
  if (o.weights == "disk" && o.checkpoint.empty())
    throw_error(Errc::invalid_argument, "--weights is disk without --checkpoint, wanted both");
  return o;
}

/// Errors of one way to run the first layers, by the fp64 oracle.
struct FirstLayers {
  double error = 0, bound = 0;  // largest / rms of the oracle; the most that is right
  bool is_compared = false, ok = true;
};

/// What became of one way to run the layers.
struct Way {
  std::string name;
  const FirstLayers& first;
  std::vector<double> samples_us{}, waited_us{}, transfer_us{};  // of a pass
  double bytes = 0, open_s = 0;
  bool ok = first.ok;
  std::string attention{};

  /// Checks that the output is that of `wanted`, bit by bit.
  void check(const std::vector<float>& wanted, const std::vector<float>& got) {
    const bool is_finite = std::all_of(got.begin(), got.end(), [](float value) { return std::isfinite(value); });
    ok = ok && is_finite && std::memcmp(wanted.data(), got.data(), got.size() * sizeof(float)) == 0;
  }
};

class Bench {
 public:
  Bench(const Options& options, Runtime& runtime, Device& device)
      : options_(options),
        runtime_(runtime),
        device_(device),
        channel_(runtime.world().channel(device.stream())),
        head_{options.run, machine_json(device, 1)} {
    config_ =
        model::load_config(options.checkpoint.empty() ? options.config : options.checkpoint + "/config.json").value();
    if (options.layers > 0) config_.layers = options.layers;
  }

  /// Compares the first layers, resident and streamed, with the oracle; whether both are right.
  bool check_oracle(int64_t tokens) {
    if (options_.oracle_layers == 0) return true;
    model::Problem problem = problem_of(tokens);
    problem.layers = std::min<int64_t>(options_.oracle_layers, config_.layers);
    const model::Shard shard = model::make_shard(config_, problem, 0, 1).value();
    const model::LayerLayout layout(config_, shard, problem.dtype);
    const std::vector<float> input = input_of(tokens);
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const std::vector<double> wanted =
        model::oracle(config_, problem, input, device_.is_gpu() ? runtime_.device() : -1, threads).value();
    const auto compare = [&](double bound) {
      std::vector<float> output(input.size(), NAN);
      const auto stack = model::Stack::create(config_, problem, channel_).value();
      stack->forward(input.data(), schedules_of(problem), output.data()).or_throw();
      FirstLayers out{relative_error(output, wanted), bound, true};
      out.ok = out.error <= bound;
      std::printf(
          "%ld tokens, %ld layers, %ld of them stream: largest error / rms of the fp64 oracle %.3g, at most %.3g%s\n",
          static_cast<long>(tokens), static_cast<long>(problem.layers),
          static_cast<long>(stack->weight_stats().streamed_layers), out.error, bound, out.ok ? "" : ": WRONG");
      std::fflush(stdout);
      return out;
    };
    // The bound is that of `overlace run` for its unfused run: a few dozen roundings a layer.
    const double ulp = problem.dtype == DType::fp32 ? 0x1p-23 : problem.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
    resident_ = compare(64 * static_cast<double>(problem.layers) * ulp);
    problem.device_bytes = model::activation_bytes(config_, problem, shard) + 2 * layout.bytes();
    streamed_ = compare(resident_.error);
    streamed_.ok = streamed_.ok && resident_.ok;
    return streamed_.ok;
  }

  /// How many ways are wrong.
  int run_case(int64_t tokens) {
    const std::vector<float> input = input_of(tokens);
    model::Problem problem = problem_of(tokens);
    const model::SiteSchedules schedules = schedules_of(problem);
    Way resident{"resident", resident_}, streamed{"overlace", streamed_}, copies{"plain", none_};
    std::vector<float> wanted(input.size(), NAN), got;
    const auto forward = [&](model::Stack& stack, std::vector<float>* output) {
      output->assign(input.size(), NAN);
      stack.forward(input.data(), schedules, output->data()).or_throw();
    };
    const auto whole = create(problem, &resident);
    forward(*whole, &wanted);
    resident.check(wanted, wanted);
    resident.attention = streamed.attention = whole->attention_by();
    refuse_plain(resident.attention);
    problem.device_bytes = int64_t{options_.device_memory_mib} << 20;
    problem.from_disk = options_.weights == "disk";
    const auto stack = create(problem, &streamed);
    forward(*stack, &got);
    streamed.check(wanted, got);
    const model::WeightStats stats = stack->weight_stats();
    streamed.bytes = copies.bytes = static_cast<double>(stats.streamed_layers * stats.layer_bytes);
    std::unique_ptr<Copies> plain = make_copies(stats);
    for (int i = 0; i < (options_.verify_only ? 0 : options_.repetitions); ++i) {
      if (streamed.ok) time(*stack, schedules, &streamed);
      if (resident.ok) time(*whole, schedules, &resident);
      if (plain != nullptr) copies.samples_us.push_back(plain->time_us(stats.streamed_layers));
    }
    forward(*stack, &got);
    streamed.check(wanted, got);
    forward(*whole, &got);
    resident.check(wanted, got);
    for (Way* way : {&resident, &streamed})
      if (!way->ok) way->samples_us.clear();
    report(problem, stats, resident, streamed, copies);
    return (resident.ok ? 0 : 1) + (streamed.ok ? 0 : 1);
  }

 private:
  /// Copies of a layer from pinned memory, one behind the other, and nothing beside them.
  class Copies {
   public:
    Copies(std::unique_ptr<model::Device> device, std::unique_ptr<model::CopyLane> lane, int64_t bytes)
        : device_(std::move(device)), lane_(std::move(lane)), bytes_(bytes) {
      for (void*& block : host_) block = device_->alloc_host(bytes, "a copy's source").value();
      for (void* block : host_) std::memset(block, 1, static_cast<size_t>(bytes));
      to_ = device_->alloc(bytes, "a copy's target").value();
    }
    ~Copies() {
      lane_.reset();
      for (void* block : host_) device_->free_host(block);
      device_->free(to_);
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    double time_us(int64_t count) {
      const auto begin = Clock::now();
      for (int64_t i = 0; i < count; ++i) lane_->copy(host_[i % 2], to_, bytes_, {}).or_throw();
      lane_->record(model::CopyLane::Queue::copies, 0).or_throw();
      lane_->synchronize(0).or_throw();
      return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }

   private:
    std::unique_ptr<model::Device> device_;
    std::unique_ptr<model::CopyLane> lane_;
    int64_t bytes_;
    void* host_[2] = {};
    void* to_ = nullptr;
  };

  /// Null where slots are memory of the host, or nothing streams.
  std::unique_ptr<Copies> make_copies(const model::WeightStats& stats) {
#ifdef OVERLACE_HAS_CUDA
    if (!device_.is_gpu() || stats.streamed_layers == 0) return nullptr;
    auto device = model::make_cuda_device(channel_).value();
    auto lane = device->make_copy_lane(1).value();
    return std::make_unique<Copies>(std::move(device), std::move(lane), stats.layer_bytes);
#else
    static_cast<void>(stats);
    return nullptr;
#endif
  }

  model::Problem problem_of(int64_t tokens) const {
    model::Problem problem;
    problem.layers = config_.layers;
    problem.tokens = tokens;
    problem.sequence_length = options_.sequence_length > 0 ? options_.sequence_length : std::gcd(tokens, int64_t{4096});
    problem.micro_batch = options_.micro_batch;
    problem.checkpoint = options_.checkpoint;
    problem.seed = 1;
    if (!base::parse_dtype(options_.dtype.c_str(), &problem.dtype))
      throw_error(Errc::invalid_argument, base::format("--dtype is {}, wanted fp32, bf16 or fp16", options_.dtype));
    return problem;
  }

  std::vector<float> input_of(int64_t tokens) const {
    std::vector<float> input(static_cast<size_t>(tokens * config_.hidden));
    model::seeded_input(1, 0, tokens, config_.hidden, input.data());
    return input;
  }

  model::SiteSchedules schedules_of(const model::Problem& problem) const {
    model::SiteSchedules schedules;
    const std::vector<model::Site> sites = model::sites(config_, problem, 1).value();
    for (const model::Site& site : sites) schedules.emplace(site.name, spec::make_schedule(site.op, spec::kLibrary));
    return schedules;
  }

  static double relative_error(const std::vector<float>& output, const std::vector<double>& wanted) {
    double largest = 0, squares = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double error = std::abs(static_cast<double>(output[i]) - wanted[i]);
      largest = std::isfinite(error) ? std::max(largest, error) : INFINITY;
      squares += wanted[i] * wanted[i];
    }
    return largest / std::sqrt(squares / static_cast<double>(wanted.size()));
  }

  void refuse_plain(const std::string& attention) const {
    const bool is_right = !device_.is_gpu() || attention.starts_with("cudnn");
    if (is_right || options_.plain_attention || options_.verify_only) return;
    throw_error(
        Errc::not_supported,
        base::format("attention was computed by the {}, wanted cuDNN, --plain-attention or --verify-only", attention));
  }

  std::unique_ptr<model::Stack> create(const model::Problem& problem, Way* way) {
    const auto begin = Clock::now();
    auto stack = model::Stack::create(config_, problem, channel_).value();
    way->open_s = std::chrono::duration<double>(Clock::now() - begin).count();
    return stack;
  }

  /// The host reads statistics when the device begins what is timed. Where it is passes ahead of the device it has
  /// queued one of them before, so that the device goes on; where it waits for a disk it is not ahead.
  void time(model::Stack& stack, const model::SiteSchedules& schedules, Way* way) {
    const int ahead = device_.is_gpu() && options_.weights == "host" ? 1 : 0;
    device_.synchronize().or_throw();
    stack.run_layers(schedules, 1).or_throw();
    device_.record_begin().or_throw();
    stack.run_layers(schedules, ahead).or_throw();
    device_.wait_for_begin().or_throw();
    const model::WeightStats before = stack.weight_stats();
    stack.run_layers(schedules, options_.passes - ahead).or_throw();
    device_.record_end().or_throw();
    way->samples_us.push_back(device_.elapsed_us().value() / options_.passes);
    const model::WeightStats after = stack.weight_stats();
    way->waited_us.push_back((after.waited_s - before.waited_s) * 1e6 / options_.passes);
    way->transfer_us.push_back((after.transfer_s - before.transfer_s) * 1e6 / options_.passes);
  }

  void report(const model::Problem& problem, const model::WeightStats& stats, const Way& resident, const Way& streamed,
              const Way& copies) {
    std::printf("%s, %ld layers, %ld tokens, %s: %ld layers of %.1f MB stream from %s into %d MiB\n",
                config_.name.c_str(), static_cast<long>(config_.layers), static_cast<long>(problem.tokens),
                options_.dtype.c_str(), static_cast<long>(stats.streamed_layers),
                static_cast<double>(stats.layer_bytes) * 1e-6, options_.weights.c_str(), options_.device_memory_mib);
    std::vector<Json> records;
    for (const Way* way : {&resident, &streamed, &copies}) {
      if (way == &copies && way->samples_us.empty()) continue;  // on CPUs, or not timed
      records.push_back(record(problem, *way, target_gbps(resident, streamed, copies)));
      if (way->samples_us.empty()) {
        std::printf("  %-20s %s\n", way->name.c_str(), way->ok ? "not timed" : "WRONG");
        continue;
      }
      const double us = base::median(way->samples_us);
      std::printf("  %-20s %10.0f us a pass", way->name.c_str(), us);
      if (way->bytes > 0) std::printf("  %6.2f GB/s", way->bytes / us * 1e-3);
      if (way == &streamed)
        std::printf("  bringing %.0f us, waited %.0f us", base::median(way->transfer_us), base::median(way->waited_us));
      if (way->open_s > 0) std::printf("  opened in %.1f s", way->open_s);
      std::printf("\n");
    }
    if (!streamed.samples_us.empty() && !resident.samples_us.empty()) {
      const double us = base::median(streamed.samples_us), alone = base::median(resident.samples_us);
      std::printf("  %.3f of resident", us / alone);
      if (!copies.samples_us.empty()) {
        const double link = base::median(copies.samples_us);
        std::printf(", %.3f of max(resident, copies), %.1f %% of the copies' rate", us / std::max(alone, link),
                    100 * link / us);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
    append_records(options_.run, records).or_throw();
  }

  /// The target of what streams, from 1.10 of the longer of computation and copies; 0 where that was not measured.
  static double target_gbps(const Way& resident, const Way& streamed, const Way& copies) {
    if (copies.samples_us.empty() || resident.samples_us.empty()) return 0;
    const double us = std::max(base::median(resident.samples_us), base::median(copies.samples_us));
    return streamed.bytes / us * 1e-3 / 1.10;
  }

  Json record(const model::Problem& problem, const Way& way, double target) {
    Json shape = Json::object(), method = Json::object(), verify = Json::object();
    shape.set("name", base::format("{}, {}", options_.weights, problem.tokens));
    shape.set("what",
              base::format("{}, {} layers in {} MiB", config_.name, config_.layers, options_.device_memory_mib));
    shape.set("sequence", problem.sequence_length).set("micro_batch", problem.micro_batch);
    shape.set("values", options_.checkpoint.empty() ? "seeded" : "checkpoint");
    method.set("repetitions", options_.repetitions).set("n", options_.passes);
    Json row = new_record(head_, "offload", std::move(shape), way.name);
    row.set("dtype", options_.dtype).set("team", 1).set("launch", "stream").set("method", method);
    row.set("data", options_.checkpoint.empty() ? "normal weights / sqrt(K), seed 1" : "of a checkpoint");
    Json flags = Json::array();
    if (!way.attention.empty()) {  // it computes
      const bool has_oracle = way.first.is_compared, is_streamed = way.name == "overlace";
      std::string oracle = is_streamed ? "bits of the resident layers" : "finite";
      if (has_oracle) oracle += "; fp64 of the first layers";
      if (!has_oracle) flags.push_back("no_oracle");
      verify.set("ok", way.ok).set("oracle", oracle);
      if (has_oracle && std::isfinite(way.first.error)) verify.set("max_error", way.first.error);
      if (has_oracle && std::isfinite(way.first.bound)) verify.set("bound", way.first.bound);
      row.set("verify", verify).set("attention", way.attention);
      if (is_streamed) row.set("target", target);
    }
    row.set("status", way.ok ? "ok" : "wrong").set("flags", flags);
    if (way.bytes > 0) row.set("bytes", way.bytes);
    if (way.samples_us.empty()) return row;
    if (!way.waited_us.empty() && way.bytes > 0) row.set("waited_us", std::max(base::median(way.waited_us), 0.0));
    return row.set("time_us", time_json(way.samples_us));
  }

  const Options& options_;
  Runtime& runtime_;
  Device& device_;
  Channel& channel_;
  RecordHead head_;
  model::ModelConfig config_;
  FirstLayers resident_, streamed_;
  const FirstLayers none_;
};

int64_t number_of(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != 0 || value < 1)
    throw_error(Errc::invalid_argument, base::format("--tokens has {}, wanted numbers of 1 or more", text));
  return value;
}

int run_main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<int64_t> tokens;
  for (const std::string& text : options.tokens) tokens.push_back(number_of(text));
  std::string why;
  const bool on_gpu = !options.cpu && runtime::cuda_device_count(&why) > 0;
  if (!on_gpu && !options.cpu) {
    std::fprintf(stderr, "bench_offload: no usable GPU (%s), wanted one or --cpu\n", why.c_str());
    return 3;
  }
  const auto bootstraps = thread_bootstraps(1);
  RuntimeOptions wanted = RuntimeOptions::from_environment();
  wanted.backend = on_gpu ? Backend::cuda_peer : Backend::cpu;
  wanted.heap_bytes = size_t{1} << 30;
  Runtime runtime = Runtime::open(*bootstraps.front(), wanted);
  int wrong = 0;
  {
    const std::unique_ptr<Device> device = open_device(on_gpu ? runtime.device() : -1).value();
    Bench bench(options, runtime, *device);
    wrong += bench.check_oracle(*std::min_element(tokens.begin(), tokens.end())) ? 0 : 1;
    for (const int64_t of : tokens) wrong += bench.run_case(of);
    device->synchronize().or_throw();
  }
  runtime.synchronize();
  runtime.close();
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_offload", argc, argv, overlace::bench::run_main);
}
