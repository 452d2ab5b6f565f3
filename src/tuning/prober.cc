#include "src/tuning/prober.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/base/half.h"
#include "src/base/statistics.h"
#include "src/ops/common/bodies.h"
#include "src/ops/common/check.h"
#include "src/runtime/state.h"
#include "src/spec/expand.h"
#include "src/spec/operators.h"

namespace overlace::tuning {
namespace {

using base::Result;
using base::Status;

constexpr int kRepetitions = 9, kFewRepetitions = 5;
constexpr double kBurstUs = 1500;

/// Arguments of a problem's schedules by name, in memory of this rank that ends with this.
class Operands {
 public:
  Operands(Channel& channel, uint64_t seed)
      : backend_(*channel.team().runtime().state().backend), stream_(channel.stream()), state_(seed) {}
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;
  ~Operands() {
    for (const auto& [name, view] : views_) backend_.free_local(view.data);
  }
  /// Normal data where there is no such argument yet.
  Status add(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    if (views_.contains(name)) return {};
    if (dtype != DType::fp32 && dtype != DType::bf16 && dtype != DType::fp16 && !is_fp8(dtype))
      return base::error(Errc::not_supported,
                         "argument {} is {}, wanted fp32, bf16, fp16, e4m3 or e5m2: data are made up", name,
                         dtype_name(dtype));
    if (shape.size() != 1 && shape.size() != 2)
      return base::error(Errc::not_supported, "argument {} has {} dimensions, wanted 1 or 2: data are made up", name,
                         shape.size());
    const int64_t columns = shape.size() == 1 ? 1 : shape[1];
    const size_t bytes = static_cast<size_t>(shape[0] * columns) * dtype_bytes(dtype);
    void* memory = nullptr;
    if (const Status got = allocate(bytes, &memory); !got.ok())
      return base::error(Errc::out_of_memory, "no {} bytes for argument {}: {}", bytes, name, got.message());
    views_[name] = shape.size() == 1 ? TensorView::contiguous(memory, dtype, {shape[0]})
                                     : TensorView::contiguous(memory, dtype, {shape[0], shape[1]});
    return fill(static_cast<char*>(memory), bytes, dtype);
  }
  const exec::Bindings& views() const { return views_; }

 private:
  /// CPU ranks throw where there is no memory.
  Status allocate(size_t bytes, void** memory) {
    try {
      const Result<void*> got = backend_.allocate_local(std::max<size_t>(bytes, 1), stream_);
      if (got.ok()) *memory = *got;
      return got.status();
    } catch (...) {
      return base::status_of_current_exception();
    }
  }
  /// Sums of four uniform numbers: data of low entropy would run faster than real ones.
  Status fill(char* to, size_t bytes, DType dtype) {
    constexpr size_t kValues = 64 * 1024;
    if (pieces_[dtype].empty()) {
      std::vector<char>& piece = pieces_[dtype];
      piece.resize(kValues * dtype_bytes(dtype));
      for (size_t i = 0; i < kValues; ++i) {
        const float value = uniform() + uniform() + uniform() + uniform();
        base::store_element(piece.data(), dtype, static_cast<int64_t>(i), value);
      }
    }
    const std::vector<char>& piece = pieces_[dtype];
    for (size_t at = 0; at < bytes; at += piece.size())
      OVERLACE_TRY(backend_.copy(to + at, piece.data(), std::min(piece.size(), bytes - at)));
    return {};
  }
  float uniform() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state_ >> 40) * 0x1p-24f - 0.5f;
  }

  runtime::BackendState& backend_;
  StreamRef stream_;
  uint64_t state_;
  exec::Bindings views_;
  std::map<DType, std::vector<char>> pieces_;
};

/// Makes the operands of all schedules; expansions say the shapes.
Status make_operands(const std::vector<spec::Schedule>& schedules, const Team& team, Operands* out) {
  for (const spec::Schedule& schedule : schedules) {
    const auto pools = [](const spec::Task& task) { return task.kind == spec::Kind::pool; };
    if (std::any_of(schedule.tasks.begin(), schedule.tasks.end(), pools))
      return base::error(Errc::not_supported, "operator {} pools bags of its arguments, wanted none: data are made up",
                         schedule.op);
    const Result<spec::Expansion> expansion = spec::expand(schedule, team.rank(), team.size());
    if (!expansion.ok()) return expansion.status();
    for (size_t i = 0; i < schedule.buffers.size(); ++i) {
      const spec::Buffer& buffer = schedule.buffers[i];
      if (buffer.space == spec::Space::argument)
        OVERLACE_TRY(out->add(buffer.name, buffer.dtype, expansion->buffer_shapes[i]));
    }
  }
  return {};
}

/// What calls of the operator compute with. `tensors` are its arguments, which must outlive the bodies.
Result<exec::Bodies> bodies_for(Channel& channel, const spec::OperatorDef& def, const exec::Bindings& operands,
                                std::vector<TensorView>* tensors) {
  if (def.compute == nullptr) return ops::bodies(channel);
  OVERLACE_TRY(ops::check_computes(channel, def));
  for (const spec::Arg& arg : def.args) {
    const auto found = operands.find(arg.name);
    tensors->push_back(found == operands.end() ? TensorView{} : found->second);
  }
  return ops::bodies_of(channel, def, *tensors);
}

}  // namespace

Result<std::string> ChannelProber::from_first(const std::string& mine) {
  std::string out;
  OVERLACE_TRY(guarded([&] { out = runtime::text_of_first(team_, mine); }));
  return out;
}

Status ChannelProber::synchronize() {
  return guarded([&] { team_.runtime().state().synchronize(); });  // findings are for the caller
}
Status ChannelProber::barrier() {
  return guarded([&] { team_.barrier(); });
}

Result<std::vector<spec::Estimate>> ChannelProber::measure(const std::vector<spec::Schedule>& schedules,
                                                           const spec::OpSpec& op) {
  ++measured_;
  Operands operands(channel_, 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(team_.rank()) + 1));
  Status made = make_operands(schedules, team_, &operands);
  exec::Bodies bodies;
  std::vector<TensorView> tensors;
  if (made.ok()) {
    Result<exec::Bodies> found = bodies_for(channel_, *spec::find_operator(op.op), operands.views(), &tensors);
    made = found.status();
    if (made.ok()) bodies = std::move(*found);
  }
  const auto is_missing = max_over_ranks({made.ok() ? 0.0 : 1.0});  // nobody waits for a rank that has none
  if (!made.ok()) return made;
  if (!is_missing.ok()) return is_missing.status();
  if (is_missing->front() > 0) return base::error(Errc::peer_lost, "another rank has no operands");
  // Words are those of a program's calls: they find what is prepared here.
  const spec::OperatorDef& def = *spec::find_operator(op.op);
  const auto words = [&] { return ops::agreement(def, op); };
  const exec::RunOptions as_in_calls{.local_param = def.local_param};
  std::vector<Competitor> list;
  for (const spec::Schedule& schedule : schedules)
    list.push_back({schedule.family, [&](int iterations) -> Status {
                      for (int i = 0; i < iterations; ++i)
                        OVERLACE_TRY(exec::run(channel_, schedule, words, operands.views(), bodies, as_in_calls));
                      return {};
                    }});
  MeasureOptions options;
  options.repetitions = problem_ms_ > 0 ? kFewRepetitions : kRepetitions;
  const double bursts = static_cast<double>(options.repetitions) * static_cast<double>(list.size());
  options.burst_us = problem_ms_ > 0 ? problem_ms_ * 1000 / bursts : kBurstUs;
  const auto timings = tuning::measure(list, *this, options);
  const Status idle = synchronize();  // before the operands go
  if (!timings.ok()) return timings.status();
  OVERLACE_TRY(idle);
  std::vector<spec::Estimate> out;
  for (const Timing& one : *timings)
    out.push_back({one.median_us, base::percentile(one.samples_us, 10), base::percentile(one.samples_us, 90), {}});
  return out;
}

}  // namespace overlace::tuning
