#include "src/base/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

namespace overlace::base {
namespace {

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::vector<std::string> plugin_directories() {
  std::vector<std::string> found;
  const auto add = [&](const std::string& dir) {
    for (const char* below : {"", "/..", "/../lib", "/../lib/overlace"}) found.push_back(dir + below);
  };
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n > 0) add(directory_of(std::string(path.data(), static_cast<size_t>(n))));
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&plugin_directories), &info) != 0 && info.dli_fname != nullptr)
    add(directory_of(info.dli_fname));
  return found;
}

}  // namespace overlace::base
