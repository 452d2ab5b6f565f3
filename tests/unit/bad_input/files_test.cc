// Files that `overlace run` and `overlace trace` read.
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/trace.h"
#include "src/model/config.h"
#include "src/model/npy.h"
#include "src/model/safetensors.h"
#include "tests/unit/bad_input/bad_input.h"

namespace overlace::bad_input {
namespace {

class BadFile : public BadInput {};
TEST_P(BadFile, IsRefusedInTheseWords) { expect_refusal(); }

/// The current directory while it lives, so that messages name files without a path.
class Directory {
 public:
  Directory() : before_(std::filesystem::current_path()) {
    char name[] = "/tmp/overlace_bad_XXXXXX";
    if (::mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
    std::filesystem::current_path(path_);
  }
  ~Directory() {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(path_);
  }
  static void write(const std::string& name, const std::string& bytes) {
    std::ofstream(name, std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path before_, path_;
};

std::string bytes_of(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
  return out;
}

Case json(const char* name, const std::string& text, const char* why) {
  return {name, [text] { (void)base::Json::parse(text, "f.json").value(); }, Errc::corrupt, why};
}

const Case kJson[] = {
    json("Empty", "",
         "f.json: line 1, column 1: syntax error while parsing value - unexpected end of input; expected '[', '{', or "
         "a literal"),
    json("Word", "nonsense",
         "f.json: line 1, column 2: syntax error while parsing value - invalid literal; last read: 'no'"),
    json("CutObject", "{\"a\": 1",
         "f.json: line 1, column 7: syntax error while parsing object - unexpected end of input; expected '}'"),
    json("CutText", "\"abc",
         "f.json: line 1, column 4: syntax error while parsing value - invalid string: missing closing quote; last "
         "read: '\"abc'"),
    json("TwoValues", "1 2",
         "f.json: line 1, column 3: syntax error while parsing value - unexpected number literal; expected end of "
         "input"),
    json(
        "TrailingComma", "[1,]",
        "f.json: line 1, column 4: syntax error while parsing value - unexpected ']'; expected '[', '{', or a literal"),
    json("SingleQuotes", "{'a': 1}",
         "f.json: line 1, column 2: syntax error while parsing object key - invalid literal; last read: '{''; expected "
         "string literal"),
    json("LeadingZero", "[01]",
         "f.json: line 1, column 3: syntax error while parsing array - unexpected number literal; expected ']'"),
    json("NotANumber", "[NaN]",
         "f.json: line 1, column 2: syntax error while parsing value - invalid literal; last read: '[N'"),
    json("BadEscape", R"(["\x"])",
         "f.json: line 1, column 4: syntax error while parsing value - invalid string: forbidden character after "
         "backslash; last read: '\"\\x'"),
    json("HalfSurrogate", R"(["\ud800"])",
         "f.json: line 1, column 9: syntax error while parsing value - invalid string: surrogate U+D800..U+DBFF must "
         "be followed by U+DC00..U+DFFF; last read: '\"\\ud800\"'"),
    json("BadUtf8", "[\"\xff\"]",
         "f.json: line 1, column 3: syntax error while parsing value - invalid string: ill-formed UTF-8 byte; last "
         "read: '\"\xFF'"),
    json("ControlCharacter", "[\"\x01\"]",
         "f.json: line 1, column 3: syntax error while parsing value - invalid string: control character U+0001 (SOH) "
         "must be escaped to \\u0001; last read: '\"<U+0001>'"),
    json("ZeroByte", std::string("[1,\0 2]", 7), "f.json: line 1, column 4: zero byte"),
    json("KeyTwice", "{\n \"a\": 1,\n \"a\": 2}", "f.json: line 3, column 4: key \"a\" occurs twice"),
    json("TooDeep", std::string(129, '['), "f.json: line 1, column 129: nested deeper than 128 levels"),
    json("Comment", "[1] // one",
         "f.json: line 1, column 5: syntax error while parsing value - invalid literal; last read: '1] /'; expected "
         "end of input"),
};

Case config(const char* name, const std::string& text, Errc code, const char* why) {
  return {name, [text] { (void)model::parse_config(text, "c.json").value(); }, code, why};
}
std::string llama(const std::string& more) {
  return R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,)"
         R"( "intermediate_size": 128)" +
         (more.empty() ? "" : ", " + more) + "}";
}

const Case kConfigs[] = {
    config("ConfigEmpty", "", Errc::corrupt,
           "c.json: line 1, column 1: syntax error while parsing value - unexpected end of input; expected '[', '{', "
           "or a literal"),
    config("ConfigText", "\"llama\"", Errc::corrupt, "c.json: the document is a string, wanted an object"),
    config("ConfigWithoutType", "{}", Errc::invalid_argument,
           "c.json: key \"model_type\" is missing, wanted one of llama, qwen2, qwen3, mistral, mixtral, "
           "qwen2_moe, qwen3_moe, deepseek_v3, gpt2, gpt3"),
    config("ConfigTypeList", R"({"model_type": ["llama"]})", Errc::invalid_argument,
           "c.json: key \"model_type\" is [\"llama\"], wanted a string"),
    config("ConfigOtherType", R"({"model_type": "mamba"})", Errc::not_supported,
           "c.json: key \"model_type\" is \"mamba\"; supported: llama, qwen2, qwen3, mistral, mixtral, "
           "qwen2_moe, qwen3_moe, deepseek_v3, gpt2, gpt3"),
    config("ConfigWithoutHidden", R"({"model_type": "llama"})", Errc::invalid_argument,
           "c.json: key \"hidden_size\" is missing, wanted an integer from 1 to 1048576"),
    config("ConfigHiddenFraction", R"({"model_type": "llama", "hidden_size": 64.5})", Errc::invalid_argument,
           "c.json: key \"hidden_size\" is 64.5, wanted an integer from 1 to 1048576"),
    config("ConfigHiddenHuge", R"({"model_type": "llama", "hidden_size": 2097152})", Errc::invalid_argument,
           "c.json: key \"hidden_size\" is 2097152, wanted an integer from 1 to 1048576"),
    config("ConfigKvHeads", llama(R"("num_key_value_heads": 3)"), Errc::invalid_argument,
           "c.json: key \"num_attention_heads\" is 4, wanted a multiple of num_key_value_heads 3"),
    config("ConfigHeadDimOdd", llama(R"("head_dim": 7)"), Errc::invalid_argument,
           "c.json: the head dimension is 7, wanted an even number for RoPE"),
    config("ConfigHeadDimHuge", llama(R"("head_dim": 1026)"), Errc::invalid_argument,
           "c.json: key \"head_dim\" is 1026, wanted an integer from 1 to 1024"),
    config("ConfigEpsNegative", llama(R"("rms_norm_eps": -1e-5)"), Errc::invalid_argument,
           "c.json: key \"rms_norm_eps\" is -1e-05, wanted a positive number"),
    config("ConfigActivation", llama(R"("hidden_act": "gelu")"), Errc::not_supported,
           "c.json: key \"hidden_act\" is \"gelu\"; supported: silu"),
    config("ConfigBiasNumber", llama(R"("attention_bias": 1)"), Errc::invalid_argument,
           "c.json: key \"attention_bias\" is 1, wanted true or false"),
    config("ConfigQuantized", llama(R"("quantization_config": {"bits": 4})"), Errc::not_supported,
           "c.json: key \"quantization_config\" is {\"bits\":4}; supported: none"),
    config("ConfigRopeYarn", llama(R"("rope_scaling": {"rope_type": "yarn"})"), Errc::not_supported,
           "c.json: key \"rope_scaling.rope_type\" is \"yarn\"; supported: default, linear, llama3"),
    config("ConfigRopeText", llama(R"("rope_scaling": "linear")"), Errc::invalid_argument,
           "c.json: key \"rope_scaling\" is \"linear\", wanted an object or null"),
    config("ConfigRopeFactor", llama(R"("rope_scaling": {"type": "linear", "factor": 0.5})"), Errc::invalid_argument,
           "c.json: key \"rope_scaling.factor\" is 0.5, wanted a number >= 1"),
    config("ConfigThetaInfinite", llama(R"("rope_theta": 1e999)"), Errc::corrupt,
           "c.json: line 1, column 138: number overflow parsing '1e999'"),
    config("ConfigPartialRope", llama(R"("partial_rotary_factor": 0.5)"), Errc::not_supported,
           "c.json: key \"partial_rotary_factor\" is 0.5; supported: 1"),
    {"ConfigUnknownName", [] { (void)model::load_config("Llama-9").value(); }, Errc::invalid_argument,
     "config \"Llama-9\": no such file and no shipped name, wanted a config.json or one of tiny, tiny-moe, "
     "Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B, Qwen3-32B, Mistral-7B-v0.1, Mixtral-8x7B, "
     "Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V3, GPT-3-175B"},
    {"ConfigMissingFile", [] { (void)model::load_config("/nowhere/c.json").value(); }, Errc::io,
     "config \"/nowhere/c.json\": no such file and no shipped name, wanted a config.json or one of tiny, tiny-moe, "
     "Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B, Qwen3-32B, Mistral-7B-v0.1, Mixtral-8x7B, "
     "Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, DeepSeek-V3, GPT-3-175B"},
};

Case weights(const char* name, const std::string& bytes, Errc code, const char* why) {
  return {name,
          [bytes] {
            const Directory directory;
            Directory::write("w", bytes);
            (void)model::SafetensorsFile::open("w").value();
          },
          code, why};
}
std::string with_header(const std::string& header, size_t data) {
  return bytes_of(header.size(), 8) + header + std::string(data, '\0');
}
std::string tensor_a(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}
/// A read of 2 x 2 from a file with this header.
Case read(const char* name, const std::string& header, size_t data, const char* tensor, Errc code, const char* why) {
  return {
      name,
      [=] {
        const Directory directory;
        Directory::write("model.safetensors", with_header(header, data));
        float out[4];
        model::Checkpoint::open(".").value().read(tensor, {2, 2}, {.rows = 2, .cols = 2}, DType::fp32, out).or_throw();
      },
      code, why};
}
Case index(const char* name, const std::string& text, Errc code, const char* why) {
  return {name,
          [text] {
            const Directory directory;
            Directory::write("model.safetensors.index.json", text);
            float out[4];
            model::Checkpoint::open(".").value().read("a", {2, 2}, {.rows = 2, .cols = 2}, DType::fp32, out).or_throw();
          },
          code, why};
}

const Case kWeights[] = {
    weights("WeightsEmpty", "", Errc::corrupt, "w: 0 bytes, wanted at least 8 for the header's length"),
    weights("WeightsSevenBytes", "1234567", Errc::corrupt, "w: 7 bytes, wanted at least 8 for the header's length"),
    weights("WeightsLongHeader", bytes_of(uint64_t{1} << 60, 8), Errc::corrupt,
            "w: offset 0: header length 1152921504606846976, wanted at most 0"),
    weights("WeightsHeaderList", with_header("[]", 0), Errc::corrupt, "w: the header is an array, wanted an object"),
    weights("WeightsHeaderText", with_header("not json", 0), Errc::corrupt,
            "w: line 1, column 2: syntax error while parsing value - invalid literal; last read: 'no'"),
    weights("WeightsEntryNumber", with_header(R"({"a": 1})", 0), Errc::corrupt,
            "w: tensor \"a\": entry is 1, wanted an object"),
    weights("WeightsUnknownDtype", with_header(tensor_a("\"F7\"", "[2]", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": dtype is \"F7\", wanted a type of the safetensors format"),
    weights("WeightsDtypeNumber", with_header(tensor_a("7", "[2]", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": dtype is 7, wanted a string"),
    weights("WeightsShapeText", with_header(tensor_a("\"F32\"", "\"2\"", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": shape is \"2\", wanted an array of at most 8 sizes"),
    weights("WeightsShapeNegative", with_header(tensor_a("\"F32\"", "[-2]", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": shape is [-2], wanted integers >= 0"),
    weights("WeightsShapeOverflows", with_header(tensor_a("\"F32\"", "[4294967296,4294967296]", "[0,8]"), 8),
            Errc::corrupt, "w: tensor \"a\": shape is [4294967296,4294967296], wanted less than 2^64 bytes"),
    weights("WeightsNineDimensions", with_header(tensor_a("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": shape is [1,1,1,1,1,1,1,1,2], wanted an array of at most 8 sizes"),
    weights("WeightsThreeOffsets", with_header(tensor_a("\"F32\"", "[2]", "[0,8,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": data_offsets is [0,8,8], wanted two integers >= 0"),
    weights("WeightsOffsetNegative", with_header(tensor_a("\"F32\"", "[2]", "[-8,0]"), 8), Errc::corrupt,
            "w: tensor \"a\": data_offsets is [-8,0], wanted two integers >= 0"),
    weights("WeightsBackwards", with_header(tensor_a("\"F32\"", "[2]", "[8,0]"), 8), Errc::corrupt,
            "w: tensor \"a\": data_offsets is [8,0], wanted begin <= end <= 8, the file's bytes of data"),
    weights("WeightsOutside", with_header(tensor_a("\"F32\"", "[2]", "[0,800]"), 8), Errc::corrupt,
            "w: tensor \"a\": data_offsets is [0,800], wanted begin <= end <= 8, the file's bytes of data"),
    weights("WeightsSizeDiffers", with_header(tensor_a("\"F32\"", "[3]", "[0,8]"), 8), Errc::corrupt,
            "w: tensor \"a\": data_offsets is [0,8], 8 bytes, wanted 12 bytes for F32 (3)"),
    weights("WeightsHole", with_header(tensor_a("\"F32\"", "[2]", "[4,12]"), 12), Errc::corrupt,
            "w: tensor \"a\" starts at offset 67, wanted 63 (a hole before it)"),
    weights("WeightsRest", with_header(tensor_a("\"F32\"", "[2]", "[0,8]"), 12), Errc::corrupt,
            "w: the tensors end at offset 70, wanted the file's size 74"),
    weights("WeightsOverlap",
            with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                        6),
            Errc::corrupt, "w: tensor \"b\" starts at offset 115, wanted 117 (it overlaps another tensor)"),
    read("ReadMissingTensor", tensor_a("\"F32\"", "[2,2]", "[0,16]"), 16, "b", Errc::corrupt,
         "./model.safetensors: tensor \"b\" is missing"),
    read("ReadOtherShape", tensor_a("\"F32\"", "[4]", "[0,16]"), 16, "a", Errc::corrupt,
         "./model.safetensors: tensor \"a\" has shape (4), wanted (2, 2)"),
    read("ReadIntegers", tensor_a("\"I32\"", "[2,2]", "[0,16]"), 16, "a", Errc::not_supported,
         "./model.safetensors: tensor \"a\" has dtype I32, supported: F64, F32, F16, BF16"),
    index("IndexEmpty", "", Errc::corrupt,
          "./model.safetensors.index.json: line 1, column 1: syntax error while parsing value - unexpected end of "
          "input; expected '[', '{', or a literal"),
    index("IndexWithoutMap", "{}", Errc::corrupt,
          "./model.safetensors.index.json: key \"weight_map\" is missing, wanted an object of tensor and file names"),
    index("IndexEmptyMap", R"({"weight_map": {}})", Errc::corrupt,
          "./model.safetensors.index.json: key \"weight_map\" is empty, wanted an object of tensor and file names"),
    index("IndexMapList", R"({"weight_map": ["m"]})", Errc::corrupt,
          "./model.safetensors.index.json: key \"weight_map\" is an array, wanted an object of tensor and file names"),
    index("IndexFileNumber", R"({"weight_map": {"a": 1}})", Errc::corrupt,
          "./model.safetensors.index.json: file of tensor \"a\" is 1, wanted a plain file name"),
    index("IndexFileOutside", R"({"weight_map": {"a": "../m"}})", Errc::corrupt,
          "./model.safetensors.index.json: file of tensor \"a\" is \"../m\", wanted a plain file name"),
    index("IndexFileHidden", R"({"weight_map": {"a": ".m"}})", Errc::corrupt,
          "./model.safetensors.index.json: file of tensor \"a\" is \".m\", wanted a plain file name"),
    index("IndexTensorMissing", R"({"weight_map": {"b": "m"}})", Errc::corrupt,
          "./model.safetensors.index.json: tensor \"a\" is missing"),
    index("IndexFileMissing", R"({"weight_map": {"a": "m"}})", Errc::io,
          "./m: open for reading: No such file or directory"),
    {"CheckpointNowhere", [] { (void)model::Checkpoint::open("/nowhere").value(); }, Errc::io,
     "checkpoint /nowhere: not a directory, wanted one with model.safetensors"},
    {"CheckpointEmptyDirectory",
     [] {
       const Directory directory;
       (void)model::Checkpoint::open(".").value();
     },
     Errc::io, "checkpoint .: neither model.safetensors nor model.safetensors.index.json is there"},
};

std::string npy(const std::string& header, size_t data, int version = 1) {
  return "\x93NUMPY" + bytes_of(static_cast<uint64_t>(version), 1) + bytes_of(0, 1) + bytes_of(header.size(), 2) +
         header + std::string(data, '\0');
}
Case matrix(const char* name, const std::string& bytes, Errc code, const char* why) {
  return {name,
          [bytes] {
            const Directory directory;
            Directory::write("x.npy", bytes);
            (void)model::read_npy("x.npy").value();
          },
          code, why};
}
std::string header(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}";
}

const Case kMatrices[] = {
    matrix("NpyEmpty", "", Errc::corrupt, "x.npy: 0 bytes, wanted at least 10 for an npy header"),
    matrix("NpyOtherMagic", std::string(100, 'x'), Errc::corrupt, "x.npy: offset 0: wanted the npy magic"),
    matrix("NpyVersion3", npy(header("'<f4'", "False", "(2, 2)"), 16, 3), Errc::not_supported,
           "x.npy: offset 6: npy version 3, wanted 1 or 2"),
    matrix("NpyHeaderCut", npy(header("'<f4'", "False", "(2, 2)"), 16).substr(0, 30), Errc::corrupt,
           "x.npy: offset 8: header length 57, wanted at most 20 of 30 bytes"),
    matrix("NpyIntegers", npy(header("'<i4'", "False", "(2, 2)"), 16), Errc::not_supported,
           "x.npy: dtype i32, wanted fp32, fp16 or fp64"),
    matrix("NpyColumnsFirst", npy(header("'<f4'", "True", "(2, 2)"), 16), Errc::not_supported,
           "x.npy: fortran_order is True, wanted False (C order)"),
    matrix("NpyThreeDimensions", npy(header("'<f4'", "False", "(2, 2, 1)"), 16), Errc::invalid_argument,
           "x.npy: 3 dimensions, wanted 2 (tokens, hidden)"),
    matrix("NpyRowsNegative", npy(header("'<f4'", "False", "(-2, 2)"), 16), Errc::corrupt,
           "x.npy: shape (-2, 2), wanted sizes >= 0 of at most 1099511627776 elements"),
    matrix("NpyShapeHuge", npy(header("'<f4'", "False", "(4611686018427387904, 8)"), 16), Errc::corrupt,
           "x.npy: shape (4611686018427387904, 8), wanted sizes >= 0 of at most 1099511627776 elements"),
    matrix("NpyDataShort", npy(header("'<f4'", "False", "(2, 2)"), 15), Errc::corrupt,
           "x.npy: 15 bytes of data after offset 67, wanted 16 for shape (2, 2)"),
    matrix("NpyWithoutShape", npy("{'descr': '<f4', 'fortran_order': False}", 16), Errc::corrupt,
           "x.npy: header key 'shape' is missing"),
    matrix("NpyShapeTwice", npy("{'shape': (1, 1), 'shape': (2, 2)}", 16), Errc::corrupt,
           "x.npy: header key 'shape' occurs twice"),
    matrix("NpyOtherKey", npy("{'dtype': '<f4'}", 16), Errc::corrupt,
           "x.npy: header key 'dtype', wanted descr, fortran_order, shape"),
    matrix("NpyOrderNumber", npy(header("'<f4'", "0", "(2, 2)"), 16), Errc::corrupt,
           "x.npy: header at character 34: \"0, 'shape': (2, \", wanted True or False"),
    matrix("NpyShapeList", npy(header("'<f4'", "False", "[2, 2]"), 16), Errc::corrupt,
           "x.npy: header at character 50: \"[2, 2]}\", wanted a tuple of sizes"),
    matrix("NpyShapeBeyond64Bits", npy(header("'<f4'", "False", "(99999999999999999999, 2)"), 16), Errc::corrupt,
           "x.npy: header at character 51: \"9999999999999999\", wanted a tuple of sizes"),
    matrix("NpyTail", npy(header("'<f4'", "False", "(2, 2)") + "x", 16), Errc::corrupt,
           "x.npy: header at character 57: \"x\", wanted the header's end"),
    matrix("NpyNotFinite", npy(header("'<f4'", "False", "(1, 2)"), 4) + "\xff\xff\xff\x7f", Errc::corrupt,
           "x.npy: element (0, 1) is nan, wanted a finite number"),
};

Case trace(const char* name, const std::string& text, const char* why) {
  return {name, [text] { (void)base::parse_trace(text, "t.json").value(); }, Errc::corrupt, why};
}
std::string events(const std::string& text) { return R"({"traceEvents": [)" + text + "]}"; }
std::string spans(const std::string& text) {
  return R"({"schema": "overlace.trace/1", "title": "", "emulated": false, "arrows": [], "spans": [)" + text + "]}";
}

const Case kTraces[] = {
    trace("TraceEmpty", "", "t.json: neither a Perfetto nor a Chrome JSON trace"),
    trace("TraceWords", "garbage", "t.json: neither a Perfetto nor a Chrome JSON trace"),
    trace("TraceCut", R"({"traceEvents": [{"ph": )",
          "t.json: line 1, column 24: syntax error while parsing value - unexpected end of input; expected '[', '{', "
          "or a literal"),
    trace("TraceWithoutEvents", "{}", "t.json: traceEvents: wanted an array"),
    trace("TraceEventsNumber", R"({"traceEvents": 1})", "t.json: traceEvents: wanted an array"),
    trace("TraceEventText", events("\"X\""), "t.json: trace event 0: ph: wanted a string"),
    trace("TraceUnknownPhase", events(R"({"ph": "Q"})"), "t.json: trace event 0: phase \"Q\", wanted M, X, s or f"),
    trace("TracePhaseNumber", events(R"({"ph": 1})"), "t.json: trace event 0: ph: wanted a string"),
    trace("TraceUnnamedProcess", events(R"({"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1})"),
          "t.json: trace event 0: pid 1 has no name before it"),
    trace("TraceRankOutside", events(R"({"ph": "M", "name": "process_name", "pid": 99999, "args": {"name": "x"}})"),
          "t.json: process: rank is 99998, wanted 0 to 65535"),
    trace("TraceFlowEndsFirst", events(R"({"ph": "f", "id": 1})"),
          "t.json: trace event 0: flow 1 ends before its start"),
    trace("TraceSpanShort", spans("[0]"), "t.json: span 0: wanted an array of 8 values"),
    trace("TraceSpanRankText", spans(R"(["0", "sm 0", "a", "gemm", 0, 1, 0, 0])"),
          "t.json: span 0: value 0 is a string, wanted a number"),
    trace("TraceSpanBackwards", spans(R"([0, "sm 0", "a", "gemm", 5, 1, 0, 0])"),
          "t.json: span \"a\" goes from 5 to 1 ns"),
    trace("TraceSpanRank", spans(R"([-1, "sm 0", "a", "gemm", 0, 1, 0, 0])"),
          "t.json: span: rank is -1, wanted 0 to 65535"),
    trace("TraceNativeCut", std::string("\n\x7f", 2), "t.json: Perfetto packet 0: length goes beyond the end"),
    trace("TraceNativeWithoutHeader", std::string("\n\x02\x50\x01", 4),
          "t.json: Perfetto packet 1: no header of overlace"),
    {"TraceOtherEnding", [] { base::write_trace({}, "t.txt").or_throw(); }, Errc::invalid_argument,
     "trace file t.txt: wanted a name that ends in .json, .pftrace or .perfetto-trace"},
};

INSTANTIATE_TEST_SUITE_P(Json, BadFile, testing::ValuesIn(kJson), case_name);
INSTANTIATE_TEST_SUITE_P(Configs, BadFile, testing::ValuesIn(kConfigs), case_name);
INSTANTIATE_TEST_SUITE_P(Weights, BadFile, testing::ValuesIn(kWeights), case_name);
INSTANTIATE_TEST_SUITE_P(Matrices, BadFile, testing::ValuesIn(kMatrices), case_name);
INSTANTIATE_TEST_SUITE_P(Traces, BadFile, testing::ValuesIn(kTraces), case_name);

}  // namespace
}  // namespace overlace::bad_input
