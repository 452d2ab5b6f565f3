#include "overlace/ops/striped.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/nvtx.h"
#include "src/exec/agree.h"
#include "src/ops/common/check.h"
#include "src/ops/reduce/launch.h"
#include "src/ops/striped/geometry.h"
#include "src/ops/striped/queue.h"
#include "src/runtime/state.h"

namespace overlace::ops {
namespace striped {

/// What an open matrix has.
struct Opened {
  Channel* channel = nullptr;
  StripedSpec spec;
  std::string name;
  Geometry geometry;
  std::array<StripedRange, 2> ranges{};
  std::array<std::vector<char*>, 2> pieces{};  // source rank x part: where this rank finds it; null: not its own
  std::vector<Run> runs{};                     // of this rank's rows
  int64_t rows = 0;                            // in them
  int turn = 0;
  bool has_captured = false;
  std::array<bool, 2> has_agreed{};  // reduce_scatter, all_to_all

  std::string call(std::string_view what) const { return base::format("striped.{} \"{}\"", what, name); }
  int ranks() const { return channel->team().size(); }
  /// A run as a rank has stored it.
  TensorView source(int rank, const Run& run) const {
    const size_t place = static_cast<size_t>(rank) * geometry.parts.size() + static_cast<size_t>(run.part);
    return {.data = pieces[static_cast<size_t>(turn)][place] + run.offset,
            .dtype = spec.dtype,
            .ndim = 2,
            .sizes = {run.rows, spec.cols},
            .strides = {geometry.pitch, 1}};
  }
};

namespace {

bool is_16_bits(DType t) { return t == DType::bf16 || t == DType::fp16; }
bool can_add(DType t) { return is_16_bits(t) || t == DType::fp32 || t == DType::fp64; }

base::Status check_channel(Channel& channel) {
  Team& team = channel.team();
  const int world = team.runtime().world().size();
  if (&team.state() != team.runtime().state().teams[0].get())
    return base::invalid_argument("the channel is one of team \"{}\" of {} ranks, wanted one of the world of {}",
                                  team.name(), team.size(), world);
  if (team.runtime().backend() == Backend::cuda_peer && world > kMaxReduceSources)
    return base::error(Errc::not_supported, "{} ranks, wanted at most {}, as the kernel of the sum takes", world,
                       kMaxReduceSources);
  return {};
}

/// What this rank would open, or why it cannot.
base::Result<Geometry> pose(Channel& channel, const StripedSpec& spec) {
  OVERLACE_TRY(check_channel(channel));
  OVERLACE_TRY(check_spec(spec, channel.team().size()));
  std::string why;
  const uint64_t granule = channel.team().runtime().state().backend->stripe_granule(&why);
  if (granule == 0) return base::error(Errc::not_supported, "{}", why);
  return place_blocks(spec, granule);
}

struct Span {
  uintptr_t begin = 0, end = 0;
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
  std::string text() const { return base::format("{:#x} to {:#x}", begin, end); }
};
Span span_of(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes};
}
Span span_of(const TensorView& t) {
  if (t.numel() == 0) return {};
  int64_t last = 0;
  for (int i = 0; i < t.ndim; ++i) last += (t.dim(i) - 1) * t.stride(i);
  return span_of(t.data, static_cast<size_t>(last + 1) * dtype_bytes(t.dtype));
}

/// That nothing of `t` is memory of the ranges, mine or of other ranks' that I own.
base::Status check_apart(const std::string& call, std::string_view name, const TensorView& t,
                         const std::array<StripedRange, 2>& ranges) {
  const Span given = span_of(t);
  const auto check = [&](const void* data, size_t bytes) {
    const Span own = span_of(data, bytes);
    if (!given.meets(own)) return base::Status();
    return base::invalid_argument("{}: {} lies at {}, in the striped memory at {}; wanted memory of its own", call,
                                  name, given.text(), own.text());
  };
  for (const StripedRange& range : ranges) {
    OVERLACE_TRY(check(range.data(), range.bytes()));
    for (const StripePiece& piece : range.owned()) OVERLACE_TRY(check(piece.data, piece.bytes));
  }
  return {};
}

enum class Taking { sum, rows };

/// Work of a call between two meetings.
base::Status queue(Opened& state, Taking what, const TensorView& out) {
  int64_t row = 0;
  std::vector<TensorView> sources(static_cast<size_t>(state.ranks()));
  for (const Run& run : state.runs) {
    for (int rank = 0; rank < state.ranks(); ++rank) {
      TensorView& source = sources[static_cast<size_t>(rank)];
      source = state.source(rank, run);
      if (what == Taking::rows) OVERLACE_TRY(copy(*state.channel, source, out.rows(rank * state.rows + row, run.rows)));
    }
    if (what == Taking::sum) OVERLACE_TRY(add(*state.channel, sources, out.rows(row, run.rows)));
    row += run.rows;
  }
  return {};
}

base::Status check_out(const Opened& state, const std::string& call, Taking what, const TensorView& out) {
  const DType dtype = state.spec.dtype;
  if (what == Taking::sum && !can_add(dtype))
    return base::invalid_argument("{}: the matrix is {}, which cannot be added, wanted bf16, fp16, fp32 or fp64", call,
                                  dtype_name(dtype));
  const bool widens = what == Taking::sum && is_16_bits(dtype);
  if (out.dtype != dtype && !(widens && out.dtype == DType::fp32))
    return base::invalid_argument("{}: out is {}, wanted {}{}", call, dtype_name(out.dtype), dtype_name(dtype),
                                  widens ? " or fp32" : "");
  const Site site = site_of(*state.channel, call);
  const int64_t rows = state.rows * (what == Taking::sum ? 1 : state.ranks());
  OVERLACE_TRY(check_matrix(site, {"out", out}, rows, state.spec.cols, "(rows of this rank's blocks)"));
  return check_apart(call, "out", out, state.ranges);
}

void run(Opened& state, Taking what, const TensorView& out) {
  Channel& channel = *state.channel;
  RuntimeState& runtime = channel.team().runtime().state();
  runtime.enter();
  const std::string call = state.call(what == Taking::sum ? "reduce_scatter" : "all_to_all");
  base::Status status = check_out(state, call, what, out);
  bool& has_agreed = state.has_agreed[what == Taking::sum ? 0 : 1];
  if (!has_agreed) {
    const exec::Agreement all = exec::agree_texts(channel.team(), status, call);
    status = exec::agree_outcome(all, "the call on a striped matrix", channel.team().name());
  }
  status.or_throw();
  has_agreed = true;
  const base::NvtxRange range("operator", [&] { return call; });
  runtime::begin_call(channel, [&] { return call; }).or_throw();
  state.has_captured = state.has_captured || runtime.backend->is_capturing(channel.stream());
  const bool are_many = state.ranks() > 1;
  if (are_many) status = meet(channel);
  if (status.ok()) status = queue(state, what, out);
  if (status.ok() && are_many && state.has_captured) status = meet(channel);
  if (!state.has_captured) state.turn = 1 - state.turn;
  // What is queued cannot be taken back, and the peers wait for the rest.
  if (!status.ok()) channel.team().runtime().abort(status.code(), status.message());
  const base::Status ended = runtime::end_call(channel);
  status.or_throw();
  ended.or_throw();
}

}  // namespace
}  // namespace striped

using striped::Geometry;
using striped::Taking;

struct StripedMatrix::State : striped::Opened {};

StripedMatrix::StripedMatrix(std::unique_ptr<State> state) : state_(std::move(state)) {}
StripedMatrix::StripedMatrix(StripedMatrix&&) noexcept = default;
StripedMatrix& StripedMatrix::operator=(StripedMatrix&&) noexcept = default;
StripedMatrix::~StripedMatrix() = default;

StripedMatrix StripedMatrix::open(Channel& channel, const StripedSpec& given, const char* name) {
  RuntimeState& runtime = channel.team().runtime().state();
  runtime.enter();
  auto state = std::make_unique<State>();
  state->channel = &channel;
  state->spec = striped::with_defaults(given, channel.team().size());
  state->name = name;
  const std::string call = state->call("open");
  base::Result<Geometry> geometry = striped::pose(channel, state->spec);
  const base::Status status = geometry.ok()
                                  ? runtime.check_no_capture(call)
                                  : base::error(geometry.status().code(), "{}: {}", call, geometry.status().message());
  const exec::Agreement all =
      exec::agree_texts(channel.team(), status, geometry.ok() ? striped::words_of(state->spec) : "");
  exec::agree_outcome(all, call, channel.team().name()).or_throw();
  state->geometry = std::move(*geometry);
  const std::vector<StripePart>& parts = state->geometry.parts;
  state->ranges[0] = runtime.heap.stripe(parts, name);
  try {
    state->ranges[1] = runtime.heap.stripe(parts, name);
  } catch (const OutOfMemory&) {  // on all ranks
    runtime.heap.free(state->ranges[0]);
    throw;
  }
  for (size_t turn = 0; turn < 2; ++turn) {
    state->pieces[turn].resize(static_cast<size_t>(state->ranks()) * parts.size());
    for (const StripePiece& piece : state->ranges[turn].owned())
      state->pieces[turn][static_cast<size_t>(piece.rank) * parts.size() + static_cast<size_t>(piece.part)] =
          static_cast<char*>(piece.data);
  }
  state->runs = striped::runs_of(state->spec, state->geometry, channel.team().rank());
  for (const striped::Run& run : state->runs) state->rows += run.rows;
  return StripedMatrix(std::move(state));
}

void StripedMatrix::close() {
  if (state_ == nullptr) return;
  const std::unique_ptr<State> state = std::move(state_);
  RuntimeState& runtime = state->channel->team().runtime().state();
  for (const StripedRange& range : state->ranges) runtime.heap.free(range);
}

StripedMatrix::State& StripedMatrix::opened(const char* call) const {
  if (state_ == nullptr)
    throw InvalidArgument(Errc::closed, base::format("striped.{}: the matrix was closed before this call", call));
  return *state_;
}

const StripedSpec& StripedMatrix::spec() const { return opened("spec").spec; }
int64_t StripedMatrix::pitch() const { return opened("pitch").geometry.pitch; }
int64_t StripedMatrix::owned_rows() const { return opened("owned_rows").rows; }
int StripedMatrix::turn() const { return opened("turn").turn; }

const StripedRange& StripedMatrix::range(int turn) const {
  const State& state = opened("range");
  if (turn != 0 && turn != 1)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("{}: turn is {}, wanted 0 or 1", state.call("range"), turn));
  return state.ranges[static_cast<size_t>(turn)];
}

TensorView StripedMatrix::out() const {
  const State& state = opened("out");
  const StripedSpec& spec = state.spec;
  TensorView view{.data = state.ranges[static_cast<size_t>(state.turn)].data(), .dtype = spec.dtype};
  if (spec.is_batched) {
    const auto block = static_cast<int64_t>(state.geometry.block_bytes / dtype_bytes(spec.dtype));
    view.ndim = 3;
    view.sizes = {spec.blocks, spec.rows, spec.cols};
    view.strides = {block, state.geometry.pitch, 1};
  } else {
    view.ndim = 2;
    view.sizes = {spec.blocks * spec.rows, spec.cols};
    view.strides = {state.geometry.pitch, 1};
  }
  return view;
}

void StripedMatrix::check_input(const char* name, const TensorView& input) const {
  const State& state = opened("check_input");
  striped::check_apart(state.call("check_input"), name, input, state.ranges).or_throw();
}

void StripedMatrix::reduce_scatter(const TensorView& out) { striped::run(opened("reduce_scatter"), Taking::sum, out); }
void StripedMatrix::all_to_all(const TensorView& out) { striped::run(opened("all_to_all"), Taking::rows, out); }

}  // namespace overlace::ops
