#include "src/ops/common/problems.h"

#include <algorithm>
#include <utility>

#include "src/exec/run.h"
#include "src/ops/common/bind.h"
#include "src/runtime/hash.h"

namespace overlace::ops {
namespace {

using spec::Role;

/// The shape of data poses nothing: it may differ from call to call, and check_data looks at it in each.
bool is_alike(const spec::Arg& arg, const TensorView& one, const TensorView& other) {
  if (one.dtype != other.dtype || one.defined() != other.defined()) return false;
  return arg.role == Role::data || (one.ndim == other.ndim && one.sizes == other.sizes && one.strides == other.strides);
}

/// As many tensors as the operator has arguments.
bool is_alike(const spec::OperatorDef& def, const CallArgs& one, const CallArgs& other) {
  const auto& [tensors, fields, row_offsets, splits, activation, exchange, blocks] = one;
  if (activation != other.activation || exchange != other.exchange || row_offsets != other.row_offsets ||
      splits != other.splits || blocks != other.blocks || fields != other.fields)
    return false;
  for (size_t i = 0; i < def.args.size(); ++i)
    if (!is_alike(def.args[i], tensors[i], other.tensors[i])) return false;
  return true;
}

/// All that a problem is known by, less fields.
uint64_t hash_of(const spec::OperatorDef& def, const CallArgs& args) {
  uint64_t hash = runtime::hash_text(def.name);
  const auto mix = [&](int64_t value) { hash = runtime::mix_word(static_cast<uint64_t>(value), hash); };
  for (size_t i = 0; i < def.args.size(); ++i) {
    const TensorView& t = args.tensors[i];
    mix(static_cast<int64_t>(t.dtype) * 2 + (t.defined() ? 1 : 0));
    if (def.args[i].role == Role::data) continue;
    for (int side = 0; side < t.ndim; ++side) mix(t.dim(side)), mix(t.stride(side));
  }
  mix(static_cast<int64_t>(args.activation)), mix(static_cast<int64_t>(args.exchange));
  for (const auto* list : {&args.row_offsets, &args.splits, &args.blocks})
    std::for_each(list->begin(), list->end(), mix);
  return hash;
}

bool has_sound_address(const Site& site, const Named& t) {
  return t.view.numel() == 0 ||
         (t.view.data != nullptr && reinterpret_cast<uintptr_t>(t.view.data) % dtype_bytes(t.view.dtype) == 0 &&
          (site.places == nullptr || site.places->check(site.op, t.name, t.view.data, site.rank).ok()));
}

bool is_result(const spec::Arg& arg) { return arg.role == Role::output || arg.role == Role::gathered; }

bool are_results_disjoint(const spec::OperatorDef& def, const CallArgs& args) {
  for (size_t i = 0; i < def.args.size(); ++i) {
    if (!is_result(def.args[i])) continue;
    for (size_t j = 0; j < def.args.size(); ++j)
      if ((j < i || !is_result(def.args[j])) && shares_memory(args.tensors[i], args.tensors[j])) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Problem> problem_of(const spec::OperatorDef& def, const CallArgs& args, int ranks) {
  auto problem = std::make_shared<Problem>(Problem{&def, args, pose(def, args, ranks)});
  for (TensorView& t : problem->args.tensors) t.data = nullptr;
  return problem;
}

KnownProblems* KnownProblems::of(Channel& channel) {
  std::shared_ptr<void>* const note = exec::note_of(channel);
  if (note == nullptr) return nullptr;
  if (*note == nullptr) *note = std::make_shared<KnownProblems>();
  return static_cast<KnownProblems*>(note->get());
}

std::shared_ptr<const Problem> KnownProblems::find(const spec::OperatorDef& def, const CallArgs& args) const {
  for (const std::shared_ptr<const Problem>& kept : places_[hash_of(def, args) % kPlaces])
    if (kept != nullptr && kept->def == &def && is_alike(def, kept->args, args)) return kept;
  return nullptr;
}

void KnownProblems::keep(std::shared_ptr<const Problem> problem) {
  auto& [last, older] = places_[hash_of(*problem->def, problem->args) % kPlaces];
  older = std::exchange(last, std::move(problem));
}

bool has_sound_memory(const Site& site, const Problem& problem, const CallArgs& args) {
  const spec::OperatorDef& def = *problem.def;
  const auto has_sound_addresses = [&](bool of_data) {
    for (size_t i = 0; i < def.args.size(); ++i) {
      if ((def.args[i].role == Role::data) != of_data) continue;
      if (!has_sound_address(site, {def.args[i].call, args.tensors[i]})) return false;
    }
    return true;
  };
  // The shape of data is unknown until check_data has looked at it.
  const auto is_sound_data = [&] {
    return def.check_data == nullptr || def.check_data(problem.op, site.rank, args.tensors, !site.is_gpu).empty();
  };
  return has_sound_addresses(false) && is_sound_data() && has_sound_addresses(true) && are_results_disjoint(def, args);
}

}  // namespace overlace::ops
