// A program whose tests are what a rank does in tests/ranks/net_test.cc, which starts it with mpirun. Words after the
// options of GoogleTest are parameters: NAME=VALUE.
#include <gtest/gtest.h>

#include "tests/ranks/net/body.h"

namespace overlace::test {

std::map<std::string, std::string>& parameters() {
  static std::map<std::string, std::string> values;
  return values;
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
