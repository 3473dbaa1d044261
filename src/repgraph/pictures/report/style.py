"""The style of the page about runs, besides that of all pages."""

STYLE = """\
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; font-size: 0.92rem; margin: 0.8rem 0 0; }
.keys { display: flex; flex-wrap: wrap; gap: 0.3rem 1.4rem; margin: 0.9rem 0; padding: 0; list-style: none; }
.keys svg { width: 2.1rem; height: 0.7rem; margin-right: 0.45rem; vertical-align: 0.05em; }
.keys b { overflow-wrap: anywhere; }
.tile b { overflow-wrap: anywhere; } .tile .name { font-weight: 600; overflow-wrap: anywhere; }
.warning { border-left: 4px solid var(--first); background: var(--card); padding: 0.5rem 0.9rem; border-radius: 4px;
  overflow-wrap: anywhere; }
.facts td { min-width: 9.5rem; max-width: 26rem; overflow-wrap: anywhere; vertical-align: top; }
.facts th[scope=row] { white-space: nowrap; vertical-align: top; padding-top: 0.45rem; }
.facts th.name { overflow-wrap: anywhere; }
tr.differs td, tr.differs th { background: var(--tint); } tr.differs th { color: inherit; }
mark { background: var(--tint); color: inherit; font-weight: 600; padding: 0 0.25em; border-radius: 3px; }
details { margin: 0.8rem 0; } summary { cursor: pointer; color: var(--second); font-size: 0.95rem; }
.classes td.bar { width: 14rem; } .classes td, .classes th { padding-top: 0.18rem; padding-bottom: 0.18rem; }
.classes td.number { padding: 0.18rem 0.5rem; } .classes th { white-space: nowrap; }
.classes th.wide { white-space: normal; overflow-wrap: anywhere; }
.classes td.name { max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
.matrices { display: flex; flex-wrap: wrap; gap: 1rem 3rem; align-items: flex-start; }
.matrices > div { max-width: 100%; font-size: 0.9rem; } .heat { display: block; max-width: none; font-family: inherit; }
.heat .cell text { visibility: hidden; fill: var(--ink); font-weight: 600; transform: translate(6px, 16px); }
.heat .cell:hover text { visibility: visible; } .heat .cell:hover rect { stroke: var(--ink); stroke-width: 1.5; }
.heat .cell rect { fill: var(--second); } .heat text { fill: var(--soft); }
.heat .cell text.value { visibility: visible; transform: none; font-weight: 400; pointer-events: none; }
.heat .cell text.light { fill: var(--card); }
.shown { display: grid; gap: 0.5rem; margin: 0 0 1rem; grid-template-columns:
  repeat(auto-fit, minmax(min(46%, 11rem), 1fr)); align-items: start; }
.titled { font-weight: 600; margin: 0 0 0.2rem; }
.shown figcaption { overflow-wrap: anywhere; }
@media (max-width: 40rem) { .classes td.bar { width: 6rem; } }
@media print { details > * { display: block; } }
"""
