"""Style sheet of the page. Colours: Okabe and Ito's palette, which readers with any colour vision can tell apart."""

STYLE = """
:root{--back:#f6f7f9;--card:#fff;--text:#16202b;--soft:#55616e;--line:#d9dee4;--track:#eef1f4;
--auto:#0072b2;--plain:#8a97a5;--part:#c3cad1;--other:#56b4e9;--limit:#d55e00;--compute:#009e73;
--good:#00694c;--good-back:#dff3ec;--bad:#a32c00;--bad-back:#fde5db;--emulated:#5b3a00;--emulated-back:#ffe9b8}
@media (prefers-color-scheme:dark){:root{--back:#10151b;--card:#19212a;--text:#e8edf2;--soft:#9fadba;--line:#2f3a46;
--track:#222c37;--auto:#3a9bdc;--plain:#7d8b99;--part:#4a5663;--other:#8fd0f5;--limit:#ff7a1a;--compute:#2fc49b;
--good:#7fe0c3;--good-back:#0f3529;--bad:#ffb199;--bad-back:#45180a;--emulated:#ffd57a;--emulated-back:#453109}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Liberation Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 40px}
h1{margin:0 0 10px;font-size:1.75rem;line-height:1.15;letter-spacing:-.01em}
h2{margin:0 0 12px;font-size:1.1rem}
h2 span{color:var(--soft);font-weight:500;white-space:pre-wrap}
p{margin:10px 0 0}
a{color:inherit;text-decoration-color:var(--line);text-underline-offset:3px}
.facts{display:flex;flex-wrap:wrap;gap:6px;margin:0}
.badge{display:inline-block;padding:2px 10px;border-radius:99px;background:var(--track);font-size:.875rem;
font-weight:500}
.badge.emulated{background:var(--emulated-back);color:var(--emulated);font-weight:700;border:1px solid var(--emulated)}
.badge.good{background:var(--good-back);color:var(--good)}
.badge.bad{background:var(--bad-back);color:var(--bad)}
.bad-text{color:var(--bad);font-weight:650}
.aside{color:var(--soft);font-size:.875rem}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px;margin-top:16px}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;background:none;border:0;padding:0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px;color:var(--soft);
font-size:.875rem}
.tile .value{font-size:1.7rem;font-weight:650;line-height:1.25;color:var(--text);font-variant-numeric:tabular-nums}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:left;vertical-align:middle;border-bottom:1px solid var(--line);font-weight:400}
tbody tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-size:.875rem;border-bottom-width:2px;vertical-align:bottom}
th[scope=row] .aside,td.number .aside{display:block;font-size:.8rem;line-height:1.25}
.number{text-align:right;white-space:nowrap}
.bar{width:38%}
svg{display:block;width:100%;height:24px;overflow:visible}
.track{fill:var(--track)}
.fill.auto{fill:var(--auto)}.fill.plain{fill:var(--plain)}.fill.part{fill:var(--part)}.fill.other{fill:var(--other)}
.whisker{stroke:var(--text);stroke-width:1.5;fill:none;vector-effect:non-scaling-stroke;opacity:.75}
.mark-limit,.mark-compute{stroke:var(--limit);stroke-width:2.5;fill:none;vector-effect:non-scaling-stroke}
.mark-compute{stroke:var(--compute);stroke-dasharray:4 3}
th[scope=row] .badge{margin-left:8px;font-size:.75rem}
.key{margin-right:16px;white-space:nowrap}
.key i{display:inline-block;height:14px;margin-right:6px;vertical-align:-2px;border-left:3px solid var(--limit)}
.key i.mark-compute{border-left:3px dashed var(--compute)}
details{margin-top:10px}
summary{cursor:pointer;color:var(--soft)}
pre{max-height:320px;overflow:auto;background:var(--track);border-radius:8px;padding:12px;font-size:.8rem}
@media (max-width:760px){
main{padding:16px 12px 32px}
h1{font-size:1.4rem}
section{padding:14px}
.tiles{grid-template-columns:1fr 1fr;gap:10px;padding:0}
.tile{padding:10px 12px}
.tile .value{font-size:1.35rem}
thead{display:block}
thead tr{display:flex}
thead th{display:none;border:0;padding:0 0 6px}
thead th.bar{display:block;width:auto}
tbody tr{display:grid;grid-template-columns:1fr 1fr;gap:2px 16px;padding:10px 0;border-bottom:1px solid var(--line)}
tbody tr:last-child{border-bottom:0}
tbody th,tbody td{display:block;padding:0;border:0}
tbody th[scope=row],tbody td.bar,tbody td[colspan]{grid-column:1/-1;width:auto}
tbody td.number{display:flex;justify-content:space-between;gap:8px;white-space:normal}
tbody td.number::before{content:attr(data-label);color:var(--soft);font-size:.875rem}
tbody td.number .aside{display:none}
}
"""
