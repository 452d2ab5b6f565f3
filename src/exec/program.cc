#include "src/exec/program.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/exec/gemm.h"
#include "src/runtime/hash.h"
#include "src/spec/heap_layout.h"

namespace overlace::exec {
namespace {

constexpr uint64_t kAlign = 256;

uint64_t buffer_bytes(const spec::Schedule& schedule, const spec::Expansion& expansion, size_t buffer) {
  uint64_t bytes = dtype_bytes(schedule.buffers[buffer].dtype);
  for (int64_t extent : expansion.buffer_shapes[buffer]) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

TensorView row_major(void* data, DType dtype, const std::vector<int64_t>& shape) {
  TensorView t;
  t.data = data;
  t.dtype = dtype;
  t.ndim = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    t.sizes[i] = shape[i];
    t.strides[i] = stride;
    stride *= shape[i];
  }
  return t;
}

/// The box inside `whole`, with leading dimensions of one element dropped down to two.
TensorView sub_box(const TensorView& whole, const spec::Box& box) {
  TensorView t;
  t.dtype = whole.dtype;
  int64_t offset = 0;
  for (int i = 0; i < box.ndim; ++i) {
    offset += box.begin[i] * whole.stride(i);
    const bool drop = box.count[i] == 1 && t.ndim == 0 && box.ndim - i > 2;
    if (drop) continue;
    t.sizes[static_cast<size_t>(t.ndim)] = box.count[i];
    t.strides[static_cast<size_t>(t.ndim)] = whole.stride(i);
    ++t.ndim;
  }
  if (whole.data != nullptr && !box.empty()) {
    t.data = static_cast<char*>(whole.data) + offset * static_cast<int64_t>(dtype_bytes(whole.dtype));
  }
  return t;
}

bool has_rows_of_product(const spec::Instance& instance) { return !instance.reads.empty() && !instance.writes.empty(); }

}  // namespace

SymBuffer Program::symmetric(int buffer, int copy) const {
  const size_t b = static_cast<size_t>(buffer);
  return {shared->offset() + static_cast<uint64_t>(copy) * shared->copy_bytes + shared->offsets[b],
          buffer_bytes(schedule, expansion, b)};
}

base::Result<std::unique_ptr<Program>> expand_program(const spec::Schedule& schedule, std::string_view agreement,
                                                      int rank, int ranks) {
  base::Result<spec::Expansion> expansion = spec::expand(schedule, rank, ranks);
  if (!expansion.ok()) return expansion.status();
  auto program = std::make_unique<Program>();
  program->schedule = schedule;
  program->agreement = agreement;
  program->expansion = std::move(expansion).value();
  program->lanes = spec::lanes_of(program->expansion);
  program->first_counter = spec::first_words(schedule, program->expansion, spec::Scope::device);
  for (const spec::Instance& instance : program->expansion.instances) {
    const bool multiplies = program->task(instance).kind == spec::Kind::gemm && has_rows_of_product(instance);
    std::vector<spec::ProductRows>& rows = program->products.emplace_back();
    if (multiplies) rows = spec::product_rows(schedule, program->expansion, instance);
  }
  program->local.resize(schedule.buffers.size());
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    if (schedule.buffers[b].space != spec::Space::local) continue;
    program->local[b] = program->workspace_bytes;
    program->workspace_bytes += base::round_up(buffer_bytes(schedule, program->expansion, b), kAlign);
  }
  return program;
}

Shared shared_layout(const Program& program) {
  spec::HeapLayout layout = spec::heap_layout(program.schedule, program.expansion);
  Shared shared;
  shared.offsets = std::move(layout.offsets);
  shared.copy_bytes = layout.copy_bytes;
  shared.copies = layout.copies;
  shared.first_id = spec::first_words(program.schedule, program.expansion, spec::Scope::system);
  shared.words = shared.first_id.back();
  shared.first_id.pop_back();
  return shared;
}

base::Result<Footprint> footprint(const spec::Schedule& schedule, int rank, int ranks) {
  base::Result<std::unique_ptr<Program>> program = expand_program(schedule, "", rank, ranks);
  if (!program.ok()) return program.status();
  const Shared shared = shared_layout(**program);
  const auto copies = static_cast<uint32_t>(shared.copies);
  return Footprint{shared.copy_bytes * copies, (*program)->workspace_bytes, shared.words * copies};
}

base::Status check_bindings(const Program& program, const Bindings& bindings) {
  for (size_t b = 0; b < program.schedule.buffers.size(); ++b) {
    const spec::Buffer& buffer = program.schedule.buffers[b];
    if (buffer.space != spec::Space::argument) continue;
    const auto bound = bindings.find(buffer.name);
    if (bound == bindings.end() || !bound->second.defined()) {
      return base::invalid_argument("schedule {}: argument buffer {} is not bound; wanted: a tensor of {} {}",
                                    program.schedule.family, buffer.name,
                                    row_major(nullptr, buffer.dtype, program.expansion.buffer_shapes[b]).shape(),
                                    dtype_name(buffer.dtype));
    }
    const TensorView& t = bound->second;
    const TensorView want = row_major(nullptr, buffer.dtype, program.expansion.buffer_shapes[b]);
    bool fits = t.ndim == want.ndim && (t.dtype == want.dtype || (want.ndim == 1 && is_float(t.dtype)));
    for (int i = 0; fits && i < t.ndim; ++i) fits = t.dim(i) == want.dim(i);
    if (!fits) {
      return base::error(Errc::plan_mismatch, "schedule {} was made for {} {} {}, the call gives {} {}",
                         program.schedule.family, buffer.name, want.shape(), dtype_name(want.dtype), t.shape(),
                         dtype_name(t.dtype));
    }
  }
  return {};
}

TensorView view_of(const Call& call, const Team& team, const spec::Box& box) {
  const Program& p = call.program;
  const size_t b = static_cast<size_t>(box.buffer);
  const spec::Buffer& buffer = p.schedule.buffers[b];
  switch (buffer.space) {
    case spec::Space::argument:
      return sub_box(call.bindings.find(buffer.name)->second, box);
    case spec::Space::local:
      return sub_box(
          row_major(static_cast<char*>(p.workspace) + p.local[b], buffer.dtype, p.expansion.buffer_shapes[b]), box);
    case spec::Space::symmetric:
      break;
  }
  void* base = box.empty() ? nullptr : team.peer_ptr(p.symmetric(box.buffer, call.copy), box.rank);
  return sub_box(row_major(base, buffer.dtype, p.expansion.buffer_shapes[b]), box);
}

uint64_t symmetric_offset(const Call& call, const spec::Box& box) {
  const size_t b = static_cast<size_t>(box.buffer);
  const DType dtype = call.program.schedule.buffers[b].dtype;
  const TensorView whole = row_major(nullptr, dtype, call.program.expansion.buffer_shapes[b]);
  int64_t first = 0;
  for (int i = 0; i < box.ndim; ++i) first += box.begin[i] * whole.stride(i);
  return call.program.symmetric(box.buffer, call.copy).offset + static_cast<uint64_t>(first) * dtype_bytes(dtype);
}

BodyContext body_context(const Call& call, const Team& team, const spec::Instance& instance, StreamRef stream) {
  BodyContext context{.schedule = call.program.schedule,
                      .task = call.program.task(instance),
                      .reads = {},
                      .writes = {},
                      .stream = stream,
                      .rank = team.rank()};
  if (!instance.writes.empty() && !instance.writes[0].empty() && instance.writes[0][0].ndim > 0)
    context.first_row = instance.writes[0][0].begin[0];
  const auto views = [&](const std::vector<std::vector<spec::Box>>& regions,
                         std::vector<std::vector<TensorView>>* out) {
    for (const std::vector<spec::Box>& boxes : regions) {
      std::vector<TensorView>& list = out->emplace_back();
      for (const spec::Box& box : boxes) {
        if (!box.empty()) list.push_back(view_of(call, team, box));
      }
    }
  };
  views(instance.reads, &context.reads);
  views(instance.writes, &context.writes);
  return context;
}

double gemm_flops(const Program& program, const spec::Instance& instance) {
  if (program.task(instance).kind != spec::Kind::gemm || instance.reads.empty() || instance.writes.empty()) return 0;
  double outputs = 0, depth = 0;
  for (const spec::Box& box : instance.writes[0]) outputs += static_cast<double>(box.numel());
  const int last = spec::sums_rows(program.task(instance)) ? 2 : 1;
  for (const spec::Box& box : instance.reads[0])
    depth = std::max(depth, static_cast<double>(box.count[box.ndim - last]));
  return 2 * outputs * depth;
}

size_t hash_of_sizes(const spec::Schedule& schedule) {
  uint64_t hash = runtime::hash_text(schedule.family, runtime::hash_text(schedule.op));
  const auto mix = [&](int64_t value) { hash = runtime::mix_word(static_cast<uint64_t>(value), hash); };
  for (const auto& [name, value] : schedule.params)
    if (const auto* number = std::get_if<int64_t>(&value); number != nullptr) mix(*number);
  for (const auto& [name, table] : schedule.tables) std::for_each(table.begin(), table.end(), mix);
  return hash;
}

}  // namespace overlace::exec
