#include "tests/ranks/support/process.h"

#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "src/base/format.h"

namespace overlace::test {
namespace {

size_t count_entries(const char* directory) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator()));
}

size_t count_heaps() {
  std::ifstream maps("/proc/self/maps");
  size_t heaps = 0;
  for (std::string line; std::getline(maps, line);) heaps += line.find("overlace-heap") != std::string::npos;
  return heaps;
}

size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

std::string difference(const Held& is, const Held& was) {
  std::string text;
  const auto compare = [&](const char* name, size_t now, size_t then) {
    if (now != then) text += base::format("{} {} instead of {}; ", now, name, then);
  };
  compare("descriptors", is.descriptors, was.descriptors);
  compare("threads", is.threads, was.threads);
  compare("mapped heaps", is.heaps, was.heaps);
  return text;
}

}  // namespace

Held held() {
  return {count_entries("/proc/self/fd"), count_entries("/proc/self/task"), count_heaps(), allocated_bytes()};
}

std::string text_of(const Held& held) {
  return base::format("{} descriptors, {} threads, {} heaps, {} bytes", held.descriptors, held.threads, held.heaps,
                      held.bytes);
}

std::string left_beyond(const Held& before) {
  constexpr int kLooks = 100;
  std::string text = difference(held(), before);
  for (int look = 0; look < kLooks && !text.empty(); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    text = difference(held(), before);
  }
  return text;
}

}  // namespace overlace::test
