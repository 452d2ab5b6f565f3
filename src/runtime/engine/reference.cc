#include "src/runtime/engine/reference.h"
namespace overlace::runtime {
std::unique_ptr<NetEngine> make_reference_engine(Team&, uint64_t&, uint64_t) { return nullptr; }
}  // namespace overlace::runtime
