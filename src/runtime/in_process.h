// Objects that the ranks of one process share: whoever comes first makes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace overlace::runtime {

/// The living object of this key, or a new one. `key`: unique per purpose, from Control::generation().
std::shared_ptr<void> share_in_process(uint64_t key, const std::function<std::shared_ptr<void>()>& make);

}  // namespace overlace::runtime
