"""check_layers finds each kind of violation, and accepts what is allowed."""

import unittest

import support
import check_layers

HEADER = "#pragma once\n"


class CheckLayersTest(support.TreeTest):
    def problems(self, path: str, text: str) -> list[str]:
        self.write(path, text)
        return check_layers.check_sources(self.root)[0]

    def test_allowed_includes(self) -> None:
        allowed = {
            "src/io/a.cc": '#include "src/base/status.h"\n#include <liburing.h>\n',
            "src/gnn/a.cc": '#include "src/io/engine.h"\n#include "overlace/team.h"\n',
            "src/spec/a.cc": '#include "src/base/json.h"\n#include "overlace/schedule.h"\n#include <vector>\n',
            "src/ops/gemm_rs/a.cc": '#include "src/exec/run.h"\n#include "src/ops/reduce/launch.h"\n',
            "src/exec/cuda/a.cc": "#include <cuda_runtime.h>\n#include <cublasLt.h>\n",
            "src/base/a.cc": "#include <fmt/format.h>\n#include <sys/stat.h>\n",
            "src/base/env.cc": 'const char* v = getenv("HOME");\n',
            "cli/x/options.cc": "#include <CLI/CLI.hpp>\n",
            "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "overlace/plan.h"\n#include "src/ops/gemm_rs/impl.h"\n',
            "src/train/co2/a.cc": '#include "src/runtime/hash.h"\n#include "overlace/co2.h"\n',
            "src/study/workload/a.cc": '#include "src/sim/engine/engine.h"\n#include "src/train/co2/timing.h"\n',
            "cli/sim/a.cc": '#include "src/study/losses.h"\n#include "src/model/config.h"\n',
            "include/overlace/capi_co2.h": HEADER + "#include <stdint.h>\n",
            "examples/11_x/main.cc": '#include "image.h"\n#include "overlace/team.h"\n',
            "src/ops/x/kernel.cuh": HEADER + "#include <cuda_bf16.h>\n",
        }
        for path, text in allowed.items():
            self.write(path, text)
        self.assertEqual(check_layers.check_sources(self.root)[0], [])

    def test_each_forbidden_include_is_found(self) -> None:
        forbidden = {
            "src/ops/gemm_rs/a.cc": ('"overlace/plan.h"', "ops must not include plan"),
            "src/exec/a.cc": ('"src/ops/reduce/launch.h"', "exec must not include ops"),
            "src/runtime/a.cc": ('"overlace/ops/ag_gemm.h"', "runtime must not include ops"),
            "src/spec/a.cc": ('"overlace/team.h"', "spec must not include runtime"),
            "src/base/a.cc": ('"src/spec/expr.h"', "base must not include spec"),
            "src/model/a.cc": ('"overlace/plan.h"', "model must not include plan"),
            "src/train/co2/a.cc": ('"src/study/workload/co2.h"', "train must not include study"),
            "src/runtime/co2.cc": ('"overlace/co2.h"', "runtime must not include train"),
            "src/ops/ag_gemm/a.cc": ('"src/ops/gemm_rs/impl.h"', "operator ag_gemm must not include operator gemm_rs"),
            "src/study/a.cc": ('"src/train/co2/replica.h"', "study must not include train"),
            "src/study/b.cc": ('"overlace/plan.h"', "study must not include plan"),
            "src/sim/a.cc": ('"src/study/network/network.h"', "sim must not include study"),
            "src/capi/a.cc": ('"src/study/workload/co2.h"', "capi must not include study"),
            "src/capi/b.cc": ('"src/model/config.h"', "capi must not include model"),
            "src/io/b.cc": ('"src/spec/names.h"', "io must not include spec"),
            "src/gnn/b.cc": ('"src/exec/run.h"', "gnn must not include exec"),
            "src/gnn/c.cc": ("<liburing.h>", "may be included by"),
            "src/plan/a.cc": ("<cuda_runtime.h>", "CUDA headers only"),
            "src/model/a.cu": ("<fmt/format.h>", "may be included by"),
            "src/runtime/b.cc": ("<nlohmann/json.hpp>", "may be included by"),
            "cli/other.cc": ("<CLI/CLI.hpp>", "may be included by"),
            "src/runtime/c.cc": ("<boost/any.hpp>", "is not known"),
            "include/overlace/error.h": ('"src/base/status.h"', "only include/overlace"),
            "include/overlace/tensor.h": ("<unistd.h>", "standard library and its own kind"),
            "include/overlace/unheard.h": ("<vector>", ""),
            "examples/01_x/main.cc": ('"src/base/json.h"', "only include/overlace"),
            "tests/unit/spec/a_test.cc": ('"src/exec/run.h"', "spec must not include exec"),
            "src/base/b.cc": ('"json.h"', "spelled from the root"),
        }
        for path, (target, part) in forbidden.items():
            with self.subTest(path=path, target=target):
                found = check_layers.check_file(path, HEADER + f"#include {target}\n")
                if part:
                    self.assert_problem(found, part)
                    self.assertIn(f"{path}:2:", found[0])
                else:
                    self.assertEqual(found, [])

    def test_a_public_header_without_a_layer_is_refused_where_it_is_used(self) -> None:
        self.assert_problem(check_layers.check_file("src/spec/a.cc", '#include "overlace/unheard.h"\n'), "has no layer")

    def test_environment_is_read_in_one_file(self) -> None:
        found = self.problems("src/runtime/a.cc", 'auto v = std::getenv("HOME");\n')
        self.assert_problem(found, "src/runtime/a.cc:1: the environment is read in src/base/env.cc only")
        self.assertEqual(check_layers.check_file("src/runtime/a.cc", "// getenv is elsewhere\n"), [])

    def test_multicast_symbols(self) -> None:
        for text in ("cuMulticastCreate(&h, &p);", 'asm("multimem.red.add.f32 ...");', 'find("cuMulticastBindMem");'):
            with self.subTest(text=text):
                self.assert_problem(check_layers.check_file("src/runtime/a.cc", text + "\n"), "multicast symbol")
        self.write("build/ours.o", b"\x7fELF cuMulticastAddDevice\0")
        self.assert_problem(check_layers.check_objects(self.root / "build"), "multicast symbol cuMulticast")
        self.write("build/ours.o", b"\x7fELF cuMemCreate\0")
        self.assertEqual(check_layers.check_objects(self.root / "build"), [])
        self.assert_problem(check_layers.check_objects(self.root / "nowhere"), "no objects")

    def test_format_is_qualified(self) -> None:
        self.assert_problem(check_layers.check_file("cli/a.cc", "using base::format;\n"), "always qualified")
        self.assertEqual(check_layers.check_file("cli/a.cc", 'auto x = base::format("{}", 1);\n'), [])

    def test_public_headers_compile_alone(self) -> None:
        self.write("include/overlace/error.h", HEADER + "#include <string>\ninline std::string a() { return {}; }\n")
        self.assertEqual(check_layers.check_headers_alone(self.root), [])
        self.write("include/overlace/team.h", HEADER + "inline std::vector<int> b() { return {}; }\n")
        found = check_layers.check_headers_alone(self.root)
        self.assertEqual(len(found), 1)
        self.assert_problem(found, "include/overlace/team.h:1: does not compile alone")

    def test_pragma_once(self) -> None:
        self.assert_problem(self.problems("src/base/a.h", "int a();\n"), "#pragma once is missing")


if __name__ == "__main__":
    unittest.main()
