#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

namespace overlace::fuzz {

ScratchFile::ScratchFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
  FUZZ_REQUIRE(fd_ >= 0);
}

void ScratchFile::write(std::string_view bytes) {
  FUZZ_REQUIRE(::ftruncate(fd_, 0) == 0);
  FUZZ_REQUIRE(::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace overlace::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  overlace::fuzz::run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
