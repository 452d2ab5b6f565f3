// Style sheet of the HTML report. Colours: Okabe and Ito's palette, which readers with any colour vision can tell
// apart; patterns tell apart what matters most without colour.
#pragma once

#include <string_view>

namespace overlace::cli {

inline constexpr std::string_view kReportStyle = R"css(
:root{--back:#f6f7f9;--card:#fff;--text:#16202b;--soft:#55616e;--line:#d9dee4;--lane:#eef1f4;
--gemm:#0072b2;--gemm-text:#fff;--other:#56b4e9;--other-text:#0b2233;--reduce:#009e73;--reduce-text:#fff;
--copy:#e69f00;--copy-text:#2b1d00;--collective:#cc79a7;--collective-text:#2d0a1d;--wait:#c3cad1;
--exposed:#d55e00;--exposed-line:#7a3300;--exposed-text:#a84700;--saved:#009e7330;--lost:#d55e0026;
--saved-line:#00805d;--arrow:#1b2733;
--good:#00694c;--good-back:#dff3ec;--bad:#a32c00;--bad-back:#fde5db;--emulated:#5b3a00;--emulated-back:#ffe9b8}
@media (prefers-color-scheme:dark){:root{--back:#10151b;--card:#19212a;--text:#e8edf2;--soft:#9fadba;--line:#2f3a46;
--lane:#222c37;--gemm:#3a9bdc;--gemm-text:#04131f;--other:#8fd0f5;--other-text:#06202f;--reduce:#2fc49b;
--reduce-text:#00241a;--copy:#f0b12f;--copy-text:#2b1d00;--collective:#dd93bb;--collective-text:#2d0a1d;--wait:#4a5663;
--exposed:#ff7a1a;--exposed-line:#5e2700;--exposed-text:#ff9a52;--saved:#2fc49b3a;--lost:#ff7a1a33;
--saved-line:#45d6ae;--arrow:#f2f5f8;
--good:#7fe0c3;--good-back:#0f3529;--bad:#ffb199;--bad-back:#45180a;--emulated:#ffd57a;--emulated-back:#453109}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Liberation Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 40px}
h1{margin:0 0 8px;font-size:1.75rem;line-height:1.15;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{margin:0 0 12px;font-size:1.15rem;display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center}
h3{margin:0 0 6px;font-size:1rem;font-weight:500;position:sticky;left:0;width:max-content;max-width:100%}
.hint{display:none}
.timeline+h3{margin-top:22px}
.facts{margin:0;display:flex;flex-wrap:wrap;gap:6px}
.badge{display:inline-block;padding:2px 10px;border-radius:99px;background:var(--lane);font-size:.875rem;
font-weight:500}
.badge.emulated{background:var(--emulated-back);color:var(--emulated);font-weight:700;border:1px solid var(--emulated)}
.badge.good{background:var(--good-back);color:var(--good)}
.badge.bad{background:var(--bad-back);color:var(--bad)}
.bad-text{color:var(--bad)}
.aside,.note,footer{color:var(--soft);font-size:.875rem}
.note{margin:10px 0 0}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px;margin-top:16px}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;background:none;border:0;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}
.tile .name{color:var(--soft);font-size:.875rem}
.tile .value{font-size:1.6rem;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;padding-bottom:4px}
.scroll:focus-visible{outline:2px solid var(--gemm);outline-offset:4px}
.wide{min-width:760px}
.timeline{display:flex}
.labels{position:sticky;left:0;flex:none;background:var(--card);z-index:1}
.chart{flex:1;width:100%;min-width:0;display:block;overflow:visible}
svg text{font-family:inherit;fill:var(--text)}
.defs{position:absolute}
.rank{font-size:13px;font-weight:650}
.lane-name{font-size:12px;fill:var(--soft)!important}
.exposed-text{font-size:11px;fill:var(--exposed-text)!important}
.tick{font-size:11px;fill:var(--soft)!important}
.lane{fill:var(--lane)}
.grid{stroke:var(--line);stroke-width:1}
.s{stroke:var(--card);stroke-width:1}
.gemm{fill:var(--gemm)}.other{fill:var(--other)}.reduce{fill:var(--reduce)}.copy{fill:var(--copy)}
.collective{fill:url(#stripes)}
.wait{fill:none;stroke:var(--wait);stroke-width:1.5;stroke-dasharray:4 3}
.n{font-size:12px}
.n-gemm{fill:var(--gemm-text)!important}.n-other{fill:var(--other-text)!important}
.n-reduce{fill:var(--reduce-text)!important}.n-copy{fill:var(--copy-text)!important}
.n-collective{fill:var(--collective-text)!important;font-weight:600}.n-wait{fill:var(--soft)!important}
.exposed{fill:url(#hatch);stroke:var(--exposed-line);stroke-width:.75}
.hatch-back{fill:var(--exposed)}.hatch-line{fill:var(--exposed-line)}
.stripe-back{fill:var(--collective)}.stripe-line{fill:var(--card);opacity:.45}
.arrow{stroke:var(--arrow);stroke-width:1.25;opacity:.8}
.arrow.faint{stroke-width:.75;opacity:.5}
.head{fill:var(--arrow)}
.saved{--tone:var(--saved-line);--area:var(--saved)}
.lost{--tone:var(--exposed-text);--area:var(--lost)}
.area{fill:var(--area)}
.end{stroke:var(--tone);stroke-width:1.5;stroke-dasharray:5 3}
.span-line{stroke:var(--tone);stroke-width:1.5}
.saved-head{fill:var(--saved-line)}.lost-head{fill:var(--exposed-text)}
.difference{fill:var(--tone)!important;font-size:14px;font-weight:650;paint-order:stroke;stroke:var(--card);
stroke-width:5px;stroke-linejoin:round}
.legend{list-style:none;margin:12px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:.875rem}
.legend li{display:flex;align-items:center;gap:7px}
.legend svg{flex:none}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:8px 10px;text-align:left;vertical-align:middle;border-bottom:1px solid var(--line);font-weight:400}
thead th{color:var(--soft);font-size:.875rem;border-bottom-width:2px;vertical-align:bottom}
tfoot th,tfoot td{border-bottom:0;font-weight:650}
.number{text-align:right;white-space:nowrap}
.bar-column{width:19%}
.schedule{max-width:330px}
.bars{width:100%;display:block;overflow:visible}
.bar-serial{fill:var(--wait)}.bar-overlapped{fill:var(--gemm)}
.bar-limit{stroke:var(--exposed);stroke-width:2}
code{font-family:ui-monospace,"Liberation Mono",Menlo,monospace;font-size:.875em;overflow-wrap:anywhere}
.plain th{color:var(--soft)}.plain td{text-align:right}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:0 16px;align-items:start}
dl{margin:0}
dl div{display:flex;justify-content:space-between;gap:16px;padding:6px 0;border-bottom:1px solid var(--line)}
dl div:last-child{border-bottom:0}
dt{color:var(--soft);flex:none}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
.notes{margin:0;padding-left:20px}
footer{margin-top:18px;text-align:center}
@media (max-width:760px){
main{padding:16px 12px 32px}
h1{font-size:1.4rem}
section{padding:14px}
h3{max-width:calc(100vw - 56px)}
.hint{display:block;margin:-6px 0 8px}
.tiles{grid-template-columns:1fr 1fr;gap:10px;padding:0}
.tile{padding:10px 12px}
.tile .value{font-size:1.35rem}
.columns{grid-template-columns:1fr}
table:not(.plain) thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
table:not(.plain) tr{display:block;padding:10px 0;border-bottom:1px solid var(--line)}
table:not(.plain) tfoot tr{border-bottom:0}
table:not(.plain) th[scope=row]{display:block;padding:0 0 4px;border:0}
table:not(.plain) td{display:flex;justify-content:space-between;gap:16px;padding:3px 0;border:0;text-align:right;
white-space:normal;max-width:none}
table:not(.plain) td::before{content:attr(data-label);color:var(--soft);font-size:.875rem;text-align:left;flex:none;
font-weight:400}
table:not(.plain) td.bar-column{width:auto}
table:not(.plain) td.bar-column>div{flex:1;max-width:170px}
table:not(.plain) td[data-label=""]{display:none}
}
)css";

}  // namespace overlace::cli
