// What a process holds, so that a test can say that nothing was left behind and that nothing grows.
#pragma once

#include <cstddef>
#include <string>

namespace overlace::test {

struct Held {
  size_t descriptors = 0, threads = 0, heaps = 0;
  size_t bytes = 0;  // allocated and not freed; 0 where a sanitizer allocates
};
/// What this process holds now.
Held held();
std::string text_of(const Held& held);

/// How many descriptors, threads and mapped heaps differ from `before`, at last: a thread that was joined stays in
/// /proc for a moment. Empty: none.
std::string left_beyond(const Held& before);

}  // namespace overlace::test
