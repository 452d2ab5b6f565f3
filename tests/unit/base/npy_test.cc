#include "src/base/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "src/base/file.h"

namespace overlace::base {
namespace {

class Npy : public testing::Test {
 protected:
  void SetUp() override {
    const int fd = ::mkstemp(path_);
    ASSERT_GE(fd, 0);
    ::close(fd);
  }
  void TearDown() override { std::remove(path_); }
  Result<NpyFile> opened(const std::string& bytes) {
    EXPECT_TRUE(write_file_durably(path_, bytes).ok());
    return NpyFile::open(path_);
  }
  char path_[32] = "/tmp/overlace_npy_XXXXXX";
};

TEST_F(Npy, EveryTypeInOneAndTwoDimensions) {
  for (const DType dtype :
       {DType::fp64, DType::fp32, DType::fp16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8}) {
    for (const auto& shape : {std::vector<int64_t>{6}, {2, 3}, {0, 5}, {0}}) {
      const std::string header = npy_header(dtype, shape);
      EXPECT_EQ(header.size() % 64, 0u);
      int64_t elements = 1;
      for (const int64_t size : shape) elements *= size;
      std::string data(static_cast<size_t>(elements) * dtype_bytes(dtype), '\0');
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + 1);
      const auto file = opened(header + data);
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(file->array().dtype, dtype);
      EXPECT_EQ(file->array().shape, shape);
      EXPECT_EQ(file->array().elements, elements);
      EXPECT_EQ(std::string(file->data(), data.size()), data);
    }
  }
}

TEST_F(Npy, AHeaderMayFillAPage) {
  const std::string header = npy_header(DType::i64, {3}, 4096);
  EXPECT_EQ(header.size(), 4096u);
  const int64_t values[] = {-1, 5, int64_t{1} << 40};
  const auto file = opened(header + std::string(reinterpret_cast<const char*>(values), sizeof values));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->array().data_offset, 4096);
  const std::span<const int64_t> read = file->values<int64_t>();
  EXPECT_TRUE(std::equal(read.begin(), read.end(), values));
  EXPECT_THROW((void)file->values<int32_t>(), Internal);
}

TEST_F(Npy, WhatIsNotMeantIsNamed) {
  const std::string good = npy_header(DType::fp32, {2});
  const auto message = [&](const std::string& bytes) { return opened(bytes).status().message(); };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    bytes.replace(bytes.find(from), from.size(), to);
    return message(bytes + std::string(8, '\0'));
  };
  EXPECT_EQ(message(good + std::string(7, '\0')),
            std::string(path_) + ": 7 bytes of data after offset 128, wanted 8 for shape (2,)");
  EXPECT_NE(changed("'<f4'", "'>f4'").find("dtype '>f4' (big-endian), wanted one of '<f8', '<f4'"), std::string::npos);
  EXPECT_NE(changed("'<f4'", "'|O' ").find("dtype '|O' (pickled objects)"), std::string::npos);
  EXPECT_NE(changed("False", "True ").find("fortran_order is True, wanted False"), std::string::npos);
  EXPECT_EQ(changed("(2,)", "(-2)"),
            std::string(path_) + ": shape (-2,), wanted sizes >= 0 of at most 1099511627776 elements");
}

TEST(NpyHeader, EndsWhereItsTextEnds) {
  const std::string text = "{'fortran_order': \n";
  const auto cut = parse_npy_header(std::string_view(text).substr(0, text.size() - 1), "f.npy");  // a blank lies behind
  EXPECT_EQ(cut.status().message(), "f.npy: header at character 18: \"\", wanted True or False");
}

TEST(NpyHeader, HasNothingBehindIt) {
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
  EXPECT_TRUE(parse_npy_header(text + " \n", "f.npy").ok());
  for (const char behind : {'x', '\0'}) {
    const std::string message = parse_npy_header(text + behind, "f.npy").status().message();
    EXPECT_NE(message.find("wanted the header's end"), std::string::npos) << message;
  }
}

TEST(NpyHeader, HasAShapeOfUpToEightSizes) {
  const auto shape = [](const std::string& sizes) {
    const auto header = parse_npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + sizes + ")}", "f.npy");
    return header.ok() ? header->shape : std::vector<int64_t>{-1};
  };
  EXPECT_EQ(shape("1,2,3,4,5,6,7,8"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  for (const char* bad : {"1,2,3,4,5,6,7,8,9", ",", "2,,3", "x"})
    EXPECT_EQ(shape(bad), std::vector<int64_t>{-1}) << bad;
}

TEST(NpyHeader, OfVersionTwoHasALengthOfFourBytes) {
  const std::string begin = "\x93NUMPY\x02" + std::string(1, '\0');
  const auto message = [&](const std::string& length) { return parse_npy(begin + length, "f.npy").status().message(); };
  EXPECT_EQ(message(std::string(3, '\0')), "f.npy: 11 bytes, wanted at least 12 for an npy header");
  EXPECT_EQ(message(std::string("\x01\0\0\0", 4)), "f.npy: offset 8: header length 1, wanted at most 0 of 12 bytes");
}

}  // namespace
}  // namespace overlace::base
