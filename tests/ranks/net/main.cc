// A program whose tests are what a rank does in tests/ranks/net_test.cc, which starts it with mpirun. Words after the
// options of GoogleTest are parameters: NAME=VALUE.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/ranks/net/body.h"

namespace overlace::test {

std::map<std::string, std::string>& parameters() {
  static std::map<std::string, std::string> values;
  return values;
}

void print_to_log(const std::string& text) {
  const int file = ::open(parameters()["log"].c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  EXPECT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(file);
}

}  // namespace overlace::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    overlace::test::parameters()[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  return RUN_ALL_TESTS();
}
