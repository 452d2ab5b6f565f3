// Tables of bad input for the library: a call, the code of its error and its exact text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "overlace/error.h"

namespace overlace::bad_input {

struct Case {
  const char* name;
  std::function<void()> call;
  Errc code;
  std::string text;
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
inline std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

class BadInput : public testing::TestWithParam<Case> {
 protected:
  void expect_refusal() const {
    const Case& c = GetParam();
    try {
      c.call();
      FAIL() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), c.text);
      EXPECT_EQ(errc_name(error.code()), errc_name(c.code));
    }
  }
};

}  // namespace overlace::bad_input
