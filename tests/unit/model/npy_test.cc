#include "src/model/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/base/half.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

std::string npy(const std::string& header, const std::string& data, int major = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += {static_cast<char>(major), '\0'};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return bytes + header + data;
}
std::string header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

TEST(NpyTest, WritesWhatItReads) {
  const ScratchDir dir;
  std::vector<float> values;
  for (int i = 0; i < 35; ++i) values.push_back(static_cast<float>(i) - 7.25f);
  ASSERT_TRUE(write_npy(dir / "x.npy", 7, 5, values.data()).ok());
  const auto read = read_npy(dir / "x.npy");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->rows, 7);
  EXPECT_EQ(read->cols, 5);
  EXPECT_EQ(read->values, values);
  std::ifstream file(dir / "x.npy", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ((text.str().size() - 35 * sizeof(float)) % 64, 0u);  // the data are aligned
  EXPECT_EQ(text.str().substr(6, 2), std::string("\x01\x00", 2));
}

TEST(NpyTest, ReadsHalfAndDoubleAndVersion2) {
  const ScratchDir dir;
  const uint16_t halves[2] = {base::float_to_fp16(1.5f), base::float_to_fp16(-2.25f)};
  auto m =
      read_npy(dir.write("h.npy", npy(header("<f2", "(1, 2)"), std::string(reinterpret_cast<const char*>(halves), 4))));
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->values, (std::vector<float>{1.5f, -2.25f}));
  const double doubles[2] = {0.1, -3};
  m = read_npy(
      dir.write("d.npy", npy(header("<f8", "(2, 1)"), std::string(reinterpret_cast<const char*>(doubles), 16), 2)));
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->values, (std::vector<float>{0.1f, -3}));
  EXPECT_EQ(m->rows, 2);
}

TEST(NpyTest, FailedWriteLeavesNothingBehind) {
  const ScratchDir dir;
  const float one = 1;
  const auto status = write_npy(dir / "missing/x.npy", 1, 1, &one);
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_NE(status.message().find("missing/x.npy"), std::string::npos) << status.message();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

struct BadNpy {
  const char* what;
  std::string bytes;
  Errc code;
  std::string text;
};
class BadNpyTest : public ::testing::TestWithParam<BadNpy> {};

TEST_P(BadNpyTest, IsRefusedByName) {
  const ScratchDir dir;
  const auto m = read_npy(dir.write("bad.npy", GetParam().bytes));
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.status().code(), GetParam().code) << m.status().message();
  EXPECT_NE(m.status().message().find(GetParam().text), std::string::npos) << m.status().message();
  EXPECT_NE(m.status().message().find("bad.npy"), std::string::npos) << m.status().message();
}

std::string floats(std::initializer_list<float> values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}
const std::string kFour = floats({1, 2, 3, 4});

const BadNpy kBadNpy[] = {
    {"Empty", "", Errc::corrupt, "0 bytes"},
    {"NoMagic", "PK\x03\x04 something else", Errc::corrupt, "npy magic"},
    {"Version3", npy(header("<f4", "(2, 2)"), kFour, 3), Errc::not_supported, "npy version 3, wanted 1 or 2"},
    {"HeaderLengthLies", std::string("\x93NUMPY\x01\x00\xff\xff", 10) + "{}", Errc::corrupt, "header length 65535"},
    {"HugeHeaderLength", std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), Errc::corrupt,
     "header length 4294967295"},
    {"NotADictionary", npy("[1]\n", kFour), Errc::corrupt, "wanted '{'"},
    {"NoShape", npy("{'descr': '<f4', 'fortran_order': False}\n", kFour), Errc::corrupt, "'shape' is missing"},
    {"KeyTwice", npy("{'descr': '<f4', 'descr': '<f4'}\n", kFour), Errc::corrupt, "occurs twice"},
    {"UnknownKey", npy("{'evil': 1}\n", kFour), Errc::corrupt, "header key 'evil'"},
    {"OpenString", npy("{'descr", kFour), Errc::corrupt, "wanted a key in quotes"},
    {"BadBoolean", npy("{'fortran_order': 1}\n", kFour), Errc::corrupt, "wanted True or False"},
    {"BadShape", npy(header("<f4", "(2, x)"), kFour), Errc::corrupt, "wanted a tuple of sizes"},
    {"ShapeOverflows", npy(header("<f4", "(99999999999999999999, 2)"), kFour), Errc::corrupt,
     "wanted a tuple of sizes"},
    {"ShapeHuge", npy(header("<f4", "(4611686018427387904, 4)"), kFour), Errc::corrupt, "4611686018427387904"},
    {"ShapeNegative", npy(header("<f4", "(-2, -2)"), kFour), Errc::corrupt, "(-2, -2)"},
    {"OneDimension", npy(header("<f4", "(4,)"), kFour), Errc::invalid_argument, "1 dimensions, wanted 2"},
    {"BigEndian", npy(header(">f4", "(2, 2)"), kFour), Errc::not_supported,
     "dtype '>f4' (big-endian), wanted one of '<f8'"},
    {"Objects", npy(header("|O", "(2, 2)"), kFour), Errc::not_supported, "dtype '|O' (pickled objects)"},
    {"Fortran", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}\n", kFour), Errc::not_supported,
     "fortran_order is True"},
    {"Truncated", npy(header("<f4", "(2, 2)"), kFour.substr(0, 13)), Errc::corrupt, "13 bytes of data"},
    {"TooLong", npy(header("<f4", "(2, 2)"), kFour + "x"), Errc::corrupt, "17 bytes of data"},
    {"TrailingText", npy(header("<f4", "(2, 2)") + "}", kFour), Errc::corrupt, "wanted the header's end"},
    {"Nan", npy(header("<f4", "(2, 2)"), floats({1, 2, NAN, 4})), Errc::corrupt, "element (1, 0) is nan"},
    {"Infinite", npy(header("<f4", "(2, 2)"), floats({1, INFINITY, 3, 4})), Errc::corrupt, "element (0, 1) is inf"},
};
INSTANTIATE_TEST_SUITE_P(All, BadNpyTest, ::testing::ValuesIn(kBadNpy),
                         [](const auto& test) { return std::string(test.param.what); });

TEST(NpyTest, MissingFileAndDirectory) {
  EXPECT_EQ(read_npy("/no/such/x.npy").status().code(), Errc::io);
  const ScratchDir dir;
  const auto status = read_npy(dir.path()).status();
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_NE(status.message().find("regular file"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace overlace::model
