#include "src/runtime/phases.h"

#include <utility>

namespace overlace::runtime {
namespace {

PhaseHook& hook() {
  static PhaseHook instance;
  return instance;
}

}  // namespace

void set_phase_hook(PhaseHook new_hook) { hook() = std::move(new_hook); }

void come_past(Phase phase, int rank) {
  if (hook()) hook()(phase, rank);
}

}  // namespace overlace::runtime
