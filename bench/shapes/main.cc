// What calls of shapes that keep changing cost beside the same calls of known shapes, on CPU ranks that are threads:
//   bench_shapes [--ranks R] [--shapes S] [--calls C] [--width W] [--seed N] [--out records.jsonl] [--git COMMIT]
// Both operators, fp32, W columns and W terms a rank, M drawn from 1 to 1024. As they come: the schedule of a shape is
// chosen and prepared at its first call, and again once it was given up. Known: each shape was called just before.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "bench/common/arguments.h"
#include "bench/common/device.h"
#include "bench/common/record.h"
#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/plan.h"
#include "overlace/runtime.h"
#include "src/base/format.h"
#include "src/base/timing.h"

namespace overlace::bench {
namespace {

using base::Json;

constexpr int64_t kMostRows = 1024;

struct Options {
  int ranks = 2, shapes = 2000, calls = 10000, width = 256;
  uint64_t seed = 1;
  RunFacts run;
};

struct Shape {
  bool is_ag = true;
  int64_t m = 1;
};

/// What all ranks draw alike.
struct Draw {
  std::vector<Shape> shapes;
  std::vector<size_t> order;  // each shape once at least
};

Draw draw(const Options& options) {
  std::mt19937_64 random(options.seed);
  Draw out;
  std::vector<Shape> all;
  for (int64_t m = 1; m <= kMostRows; ++m) all.push_back({true, m}), all.push_back({false, m});
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
  if (static_cast<size_t>(options.shapes) > all.size())
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("--shapes {}, wanted at most {}", options.shapes, all.size()));
  out.shapes.assign(all.begin(), all.begin() + options.shapes);
  for (size_t i = 0; i < static_cast<size_t>(options.calls); ++i)
    out.order.push_back(i < out.shapes.size() ? i : random() % out.shapes.size());
  for (size_t i = out.order.size(); i > 1; --i) std::swap(out.order[i - 1], out.order[random() % i]);
  return out;
}

class Rank {
 public:
  Rank(Runtime& runtime, const Options& options, const Draw& drawn)
      : team_(runtime.world()),
        channel_(team_.channel(StreamRef::cpu())),
        drawn_(drawn),
        width_(options.width),
        a_(static_cast<size_t>(kMostRows * width_), 1.0f),
        b_(static_cast<size_t>(width_ * width_), 1.0f),
        out_(static_cast<size_t>(kMostRows * width_)),
        chosen_(drawn.shapes.size()) {}

  void call(size_t which) {
    const Shape& shape = drawn_.shapes[which];
    const int64_t ranks = team_.size(), rank = team_.rank();
    const int64_t mine = shape.m / ranks + (rank < shape.m % ranks ? 1 : 0);  // as torch.tensor_split
    const TensorView b = TensorView::contiguous(b_.data(), DType::fp32, {width_, width_});
    const auto rows = [&](std::vector<float>& data, int64_t count) {
      return TensorView::contiguous(data.data(), DType::fp32, {count, width_});
    };
    const int64_t out_rows = shape.is_ag ? shape.m : mine;
    if (shape.is_ag) {
      const ops::AgGemmArgs args{.a_shard = rows(a_, mine), .b = b, .c = rows(out_, shape.m)};
      ops::run(channel_, args, schedule(which, args));
    } else {
      const ops::GemmRsArgs args{.a = rows(a_, shape.m), .b = b, .out = rows(out_, mine)};
      ops::run(channel_, args, schedule(which, args));
    }
    if (out_rows == 0) return;
    const auto wanted = static_cast<float>(shape.is_ag ? width_ : width_ * ranks);
    const float got[] = {out_[0], out_[static_cast<size_t>(out_rows * width_) - 1]};
    if (got[0] != wanted || got[1] != wanted)
      throw Error(Errc::internal, base::format("M {}: got {} and {}, wanted {}", shape.m, got[0], got[1], wanted));
    out_[0] = out_[static_cast<size_t>(out_rows * width_) - 1] = 0;
  }

  double as_they_come() {
    return seconds_of([&] {
      for (const size_t which : drawn_.order) call(which);
    });
  }
  double known() {
    std::vector<int> counts(drawn_.shapes.size());
    for (const size_t which : drawn_.order) ++counts[which];
    double seconds = 0;
    for (size_t which = 0; which < counts.size(); ++which) {
      call(which);
      seconds += seconds_of([&] {
        for (int i = 0; i < counts[which]; ++i) call(which);
      });
    }
    return seconds;
  }

 private:
  template <class Args>
  const spec::Schedule& schedule(size_t which, const Args& args) {
    std::unique_ptr<spec::Schedule>& found = chosen_[which];
    if (found == nullptr) {
      found = std::make_unique<spec::Schedule>(planner_.plan(ops::op_spec(channel_, args))->schedule);
    }
    return *found;
  }

  template <class Body>
  double seconds_of(Body body) {
    team_.barrier();
    const auto timed = [&] {
      body();
      team_.barrier();
    };
    return base::us_of(timed) * 1e-6;
  }

  Team& team_;
  Channel& channel_;
  const Draw& drawn_;
  int64_t width_;
  std::vector<float> a_, b_, out_;
  plan::Planner planner_{spec::rated_machine({.link_bytes_per_s = 5e9, .flops_per_s = 2e10})};
  std::vector<std::unique_ptr<spec::Schedule>> chosen_;
};

struct Times {
  double as_they_come = 0, known = 0;
  Stats stats{};
};

Times measure(const Options& options, const Draw& drawn) {
  std::vector<std::unique_ptr<Bootstrap>> bootstraps = thread_bootstraps(options.ranks);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(bootstraps.size());
  Times times;
  for (size_t r = 0; r < bootstraps.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        RuntimeOptions runtime_options = RuntimeOptions::from_environment();
        runtime_options.backend = Backend::cpu;
        runtime_options.num_signal_ids = 16384;  // what GPUs have
        runtime_options.max_heap_bytes = size_t{1} << 30;
        Runtime runtime = Runtime::open(*bootstraps[r], runtime_options);
        Rank rank(runtime, options, drawn);
        const Times mine{rank.as_they_come(), rank.known(), {}};
        if (r == 0) times = mine, times.stats = runtime.stats();
        runtime.close();
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return times;
}

int run_main(int argc, char** argv) {
  Options options;
  Arguments arguments(&options.run);
  arguments.add("--ranks", &options.ranks, 1);
  arguments.add("--shapes", &options.shapes, 1);
  arguments.add("--calls", &options.calls, 1);
  arguments.add("--width", &options.width, 1);
  arguments.add("--seed", &options.seed);
  arguments.parse(argc, argv);
  const Draw drawn = draw(options);
  const Times times = measure(options, drawn);
  const std::string what = base::format("{} calls of {} shapes, {} columns and terms a rank, seed {}", options.calls,
                                        options.shapes, options.width, options.seed);
  std::printf("%s: as they come %.3f s, known %.3f s, ratio %.2f; %llu preparations, %llu evictions\n", what.c_str(),
              times.as_they_come, times.known, times.as_they_come / times.known,
              static_cast<unsigned long long>(times.stats.preparations),
              static_cast<unsigned long long>(times.stats.evictions));
  const RecordHead head{options.run, machine_json(*cpu_device(), options.ranks)};
  std::vector<Json> records;
  for (const bool is_new : {true, false}) {
    Json shape = Json::object(), method = Json::object(), verify = Json::object();
    shape.set("name", is_new ? "shapes_as_they_come" : "shapes_known").set("what", what);
    method.set("repetitions", int64_t{1}).set("n", static_cast<int64_t>(options.calls));
    verify.set("ok", true).set("oracle", "first and last element of each result");
    Json record = new_record(head, "shapes", std::move(shape), "overlace");
    record.set("team", options.ranks).set("method", method).set("verify", verify).set("status", "ok");
    record.set("time_us", time_json({(is_new ? times.as_they_come : times.known) * 1e6 / options.calls}));
    records.push_back(std::move(record));
  }
  append_records(options.run, records).or_throw();
  return 0;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_shapes", argc, argv, overlace::bench::run_main);
}
