#include "cli/bench/bench.h"

#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "overlace/error.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

int fail(Errc code, const std::string& message) {
  std::fprintf(stderr, "overlace: error: %s\n", message.c_str());
  return exit_code(code);
}

std::string parent(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

/// In an install tree beside bin; in a checkout in its bench folder, which is above the folder of the build. Empty: not
/// there.
std::string find_driver(const std::string& program) {
  const auto exists = [](const std::string& folder) { return ::access((folder + "/__main__.py").c_str(), R_OK) == 0; };
  const std::string installed = parent(parent(program)) + "/share/overlace/bench/driver";
  if (exists(installed)) return installed;
  for (std::string folder = parent(program); !folder.empty(); folder = parent(folder))
    if (exists(folder + "/bench/driver")) return folder + "/bench/driver";
  return {};
}

}  // namespace

int bench(const std::vector<std::string>& arguments) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return fail(Errc::io, "/proc/self/exe cannot be read, wanted the place of this program");
  const std::string program(path, static_cast<size_t>(length));
  const std::string driver = find_driver(program);
  if (driver.empty())
    return fail(Errc::not_supported,
                base::format("bench: its driver is neither above {} nor in share/overlace/bench/driver beside it; "
                             "wanted: a checkout or an install tree that was built with OVERLACE_BENCH=ON, or a wheel",
                             parent(program)));
  std::vector<std::string> words = {"python3", driver, "--overlace", program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  return fail(Errc::not_supported, base::format("bench needs python3: {}", std::strerror(errno)));
}

}  // namespace overlace::cli
