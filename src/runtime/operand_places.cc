#include "src/runtime/operand_places.h"

#include <string>

namespace overlace::runtime {
namespace {

std::string name_of(int place) { return place == kHostMemory ? "in host memory" : base::format("on GPU {}", place); }

}  // namespace

base::Status OperandPlaces::ask(std::string_view op, std::string_view argument, const void* address, int rank) {
  const base::Result<int> place = find_(address);
  if (!place.ok()) return place.status();
  if (*place != home_ && *place != kManagedMemory) {
    return base::error(Errc::invalid_argument, "{}: {} is {}, wanted {} of this context; rank {}", op, argument,
                       name_of(*place), base::format("GPU {}", home_), rank);
  }
  known_[slot_of(address)] = address;
  return {};
}

}  // namespace overlace::runtime
