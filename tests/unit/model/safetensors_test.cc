#include "src/model/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/base/half.h"
#include "tests/unit/model/safetensors_writer.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

std::vector<float> counting(int64_t n, float first) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

TEST(SafetensorsTest, ReadsBoxesOfAMatrix) {
  const ScratchDir dir;
  dir.write("model.safetensors", safetensors({{"a", "F32", {3, 4}, fp32_bytes(counting(12, 0))},
                                              {"b", "F32", {5}, fp32_bytes(counting(5, 100))}}));
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(checkpoint->has("a"));
  EXPECT_FALSE(checkpoint->has("c"));
  std::vector<float> out(4);
  ASSERT_TRUE(checkpoint->read("a", {3, 4}, {1, 2, 2, 2, false}, DType::fp32, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{6, 7, 10, 11}));
  ASSERT_TRUE(checkpoint->read("a", {3, 4}, {1, 2, 2, 2, true}, DType::fp32, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{6, 10, 7, 11}));
  ASSERT_TRUE(checkpoint->read("b", {5}, {0, 1, 1, 4, false}, DType::fp32, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{101, 102, 103, 104}));
}

/// Blocks of rows that are transposed together, whole ones and what is left, of every size of elements.
TEST(SafetensorsTest, TransposesBoxesOfAnySize) {
  const ScratchDir dir;
  constexpr int64_t kRows = 53, kCols = 29;
  dir.write("model.safetensors", safetensors({{"a", "F32", {kRows, kCols}, fp32_bytes(counting(kRows * kCols, 0))}}));
  auto checkpoint = Checkpoint::open(dir.path()).value();
  for (const int64_t rows : {1, 15, 16, 17, 32, 47})
    for (const int64_t cols : {1, 7, 16, 23})
      for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16}) {
        const StoredBox box{5, rows, 3, cols, true};
        std::vector<char> out(static_cast<size_t>(rows * cols) * dtype_bytes(dtype) + 8, 'x');
        ASSERT_TRUE(checkpoint.read("a", {kRows, kCols}, box, dtype, out.data()).ok());
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < cols; ++j) {
            const auto value = static_cast<float>((5 + i) * kCols + 3 + j);
            const double rounded = dtype == DType::bf16 ? base::bf16_to_float(base::float_to_bf16(value)) : value;
            ASSERT_EQ(base::load_element(out.data(), dtype, j * rows + i), rounded) << rows << "x" << cols;
          }
        EXPECT_EQ(std::string(out.end() - 8, out.end()), "xxxxxxxx") << "nothing behind the box";
      }
}

TEST(SafetensorsTest, ConvertsEveryFloatingType) {
  const ScratchDir dir;
  const std::vector<double> values = {1.0 + 0x1p-9, -3.5, 1.0 + 0x1p-8 + 0x1p-40};
  std::vector<TestTensor> tensors;
  for (const auto& [name, dtype] :
       {std::pair{"F64", DType::fp64}, {"F32", DType::fp32}, {"F16", DType::fp16}, {"BF16", DType::bf16}}) {
    std::string data(values.size() * dtype_bytes(dtype), '\0');
    for (size_t i = 0; i < values.size(); ++i)
      base::store_element(data.data(), dtype, static_cast<int64_t>(i), values[i]);
    tensors.push_back({name, name, {3}, data});
  }
  dir.write("model.safetensors", safetensors(tensors));
  auto checkpoint = Checkpoint::open(dir.path()).value();
  for (const TestTensor& t : tensors) {
    uint16_t out[3];
    ASSERT_TRUE(checkpoint.read(t.name, {3}, {0, 1, 0, 3, false}, DType::bf16, out).ok());
    EXPECT_EQ(base::bf16_to_float(out[1]), -3.5f) << t.name;
  }
  // A little above the middle of two bf16 numbers, by less than fp32 shows: rounding twice would give 1.
  uint16_t out[3];
  ASSERT_TRUE(checkpoint.read("F64", {3}, {0, 1, 0, 3, false}, DType::bf16, out).ok());
  EXPECT_EQ(base::bf16_to_float(out[2]), 1.0f + 0x1p-7f);
  EXPECT_EQ(base::bf16_to_float(out[0]), 1.0f);
}

TEST(SafetensorsTest, ReadsAShardedIndexAndOpensOnlyWhatItNeeds) {
  const ScratchDir dir;
  dir.write("one.safetensors", safetensors({{"a", "F32", {2}, fp32_bytes({1, 2})}}));
  dir.write("model.safetensors.index.json",
            R"({"metadata": {"total_size": 16}, "weight_map": {"a": "one.safetensors", "b": "gone.safetensors"}})");
  auto checkpoint = Checkpoint::open(dir.path()).value();
  std::vector<float> out(2);
  ASSERT_TRUE(checkpoint.read("a", {2}, {0, 1, 0, 2, false}, DType::fp32, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{1, 2}));
  const auto status = checkpoint.read("b", {2}, {0, 1, 0, 2, false}, DType::fp32, out.data());
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_NE(status.message().find("gone.safetensors"), std::string::npos) << status.message();
}

struct BadFile {
  const char* what;
  std::string bytes;
  std::string text;
};
class BadSafetensorsTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensorsTest, IsCorruptByName) {
  const ScratchDir dir;
  const auto file = SafetensorsFile::open(dir.write("bad.safetensors", GetParam().bytes));
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), Errc::corrupt) << file.status().message();
  EXPECT_NE(file.status().message().find(GetParam().text), std::string::npos) << file.status().message();
  EXPECT_NE(file.status().message().find("bad.safetensors"), std::string::npos) << file.status().message();
}

const std::string kData(16, 'd');
std::string one(const std::string& entry, const std::string& data = kData) {
  return with_length("{\"w\":" + entry + "}", data);
}

const BadFile kBadFiles[] = {
    {"Empty", "", "0 bytes, wanted at least 8"},
    {"ShortLength", "abc", "3 bytes, wanted at least 8"},
    {"HugeLength", std::string(8, '\xff'), "header length 18446744073709551615, wanted at most 0"},
    {"LengthBeyondFile", std::string("\xff\0\0\0\0\0\0\0{}", 10), "header length 255, wanted at most 2"},
    {"NotJson", with_length("not json", ""), "line 1"},
    {"NotObject", with_length("[]", ""), "an array, wanted an object"},
    {"DeepJson", with_length(std::string(100000, '['), ""), "nested deeper"},
    {"NameTwice", with_length(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{}})", kData),
     "occurs twice"},
    {"EntryNotObject", one("[]"), "entry is []"},
    {"NoDtype", one(R"({"shape":[4],"data_offsets":[0,16]})"), "dtype is missing"},
    {"UnknownDtype", one(R"({"dtype":"F33","shape":[4],"data_offsets":[0,16]})"), "dtype is \"F33\""},
    {"NoShape", one(R"({"dtype":"F32","data_offsets":[0,16]})"), "shape is missing"},
    {"NegativeShape", one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "shape is [-4]"},
    {"FloatShape", one(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})"), "shape is [4.0]"},
    {"ShapeOverflows",
     one(R"({"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,16]})"),
     "less than 2^64 bytes"},
    {"ManyDims", one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})"), "at most 8 sizes"},
    {"NoOffsets", one(R"({"dtype":"F32","shape":[4]})"), "data_offsets is missing"},
    {"ThreeOffsets", one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,8,16]})"), "wanted two integers"},
    {"NegativeOffset", one(R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})"), "wanted two integers >= 0"},
    {"BackwardOffsets", one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "begin <= end <= 16"},
    {"OffsetsBeyondFile", one(R"({"dtype":"F32","shape":[8],"data_offsets":[0,32]})"), "begin <= end <= 16"},
    {"OffsetsLie", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})"),
     "16 bytes, wanted 12 bytes for F32 (3)"},
    {"Overlap",
     with_length(R"({"v":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
      "w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                 kData),
     "it overlaps another tensor"},
    {"Hole",
     with_length(R"({"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
      "w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                 kData),
     "a hole before it"},
    {"TrailingBytes", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "wanted the file's size"},
    {"TruncatedData", safetensors({{"a", "F32", {4}, kData}}).substr(0, 100), "begin <= end"},
};
INSTANTIATE_TEST_SUITE_P(All, BadSafetensorsTest, ::testing::ValuesIn(kBadFiles),
                         [](const auto& test) { return std::string(test.param.what); });

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const ScratchDir dir;
  const std::string whole = safetensors({{"a", "F32", {2}, fp32_bytes({1, 2})}, {"b", "BF16", {2}, "abcd"}});
  ASSERT_TRUE(SafetensorsFile::open(dir.write("x", whole)).ok());
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_EQ(SafetensorsFile::open(dir.write("x", whole.substr(0, n))).status().code(), Errc::corrupt) << n;
}

TEST(SafetensorsTest, WrongShapeDtypeMissingAndNotFiniteAreNamed) {
  const ScratchDir dir;
  dir.write("model.safetensors", safetensors({{"f", "F32", {2, 2}, fp32_bytes({1, 2, 3, NAN})},
                                              {"i", "I64", {2}, std::string(16, 'x')},
                                              {"big", "F32", {2}, fp32_bytes({1, 70000})}}));
  auto checkpoint = Checkpoint::open(dir.path()).value();
  char out[64];
  const auto expect = [&](const base::Status& status, Errc code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect(checkpoint.read("f", {2, 3}, {0, 2, 0, 3, false}, DType::fp32, out), Errc::corrupt,
         "tensor \"f\" has shape (2, 2), wanted (2, 3)");
  expect(checkpoint.read("i", {2}, {0, 1, 0, 2, false}, DType::fp32, out), Errc::not_supported, "has dtype I64");
  expect(checkpoint.read("g", {2}, {0, 1, 0, 2, false}, DType::fp32, out), Errc::corrupt, "tensor \"g\" is missing");
  expect(checkpoint.read("f", {2, 2}, {0, 2, 0, 2, false}, DType::fp32, out), Errc::corrupt, "element (1, 1) is nan");
  EXPECT_TRUE(checkpoint.read("f", {2, 2}, {0, 1, 0, 2, false}, DType::fp32, out).ok());  // not my part
  EXPECT_TRUE(checkpoint.read("big", {2}, {0, 1, 0, 2, false}, DType::bf16, out).ok());
  expect(checkpoint.read("big", {2}, {0, 1, 0, 2, false}, DType::fp16, out), Errc::corrupt,
         "element (0, 1) is 70000, wanted a finite fp16 number");
}

TEST(SafetensorsTest, BadDirectoriesAndIndexesAreNamed) {
  const auto expect = [](const base::Status& status, Errc code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect(Checkpoint::open("/no/such/dir").status(), Errc::io, "not a directory");
  const ScratchDir dir;
  expect(Checkpoint::open(dir.path()).status(), Errc::io, "neither model.safetensors nor");
  const auto with_index = [&](const char* json) {
    dir.write("model.safetensors.index.json", json);
    return Checkpoint::open(dir.path()).status();
  };
  expect(with_index("{"), Errc::corrupt, "model.safetensors.index.json");
  expect(with_index("[]"), Errc::corrupt, "\"weight_map\" is missing");
  expect(with_index(R"({"weight_map": {}})"), Errc::corrupt, "\"weight_map\" is empty");
  expect(with_index(R"({"weight_map": 7})"), Errc::corrupt, "\"weight_map\" is an integer");
  expect(with_index(R"({"weight_map": {"a": "../../etc/passwd"}})"), Errc::corrupt, "wanted a plain file name");
  expect(with_index(R"({"weight_map": {"a": "/etc/passwd"}})"), Errc::corrupt, "wanted a plain file name");
  expect(with_index(R"({"weight_map": {"a": 3}})"), Errc::corrupt, "wanted a plain file name");
  // The index names a file that does not hold the tensor.
  dir.write("one.safetensors", safetensors({{"b", "F32", {1}, fp32_bytes({1})}}));
  dir.write("model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors"}})");
  auto checkpoint = Checkpoint::open(dir.path()).value();
  float out;
  expect(checkpoint.read("a", {1}, {0, 1, 0, 1, false}, DType::fp32, &out), Errc::corrupt, "tensor \"a\" is missing");
}

}  // namespace
}  // namespace overlace::model
