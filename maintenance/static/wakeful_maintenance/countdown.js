'use strict';
// Makes the moments of a page live. Without this script they stay as they were when the page was made.
//
// Each <time class="wakeful-moment"> carries its moment (datetime) and the database's time when the page was made
// (data-now). Time goes on from there by this page's own monotonic clock: the clock of the viewer's machine, which
// may be wrong, is never read.
{
    const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

    // The two largest units, as the server says it: "3 min 12 s".
    const spoken = (seconds) => {
        let rest = Math.floor(Math.abs(seconds));
        const parts = UNITS.map(([size, unit]) => {
            const count = Math.floor(rest / size);
            rest -= count * size;
            return {count, unit};
        });
        const first = Math.max(0, parts.findIndex(part => part.count > 0));
        const start = parts.some(part => part.count > 0) ? first : parts.length - 1;
        const said = parts.slice(start, start + 2).filter(part => part.count > 0);
        return said.length ? said.map(part => `${part.count} ${part.unit}`).join(' ') : '0 s';
    };

    const refresh = (moments) => {
        const passed = performance.now();
        for (const {element, ahead} of moments) {
            const seconds = (ahead - passed) / 1000;
            element.textContent = seconds > 0 ? `in ${spoken(seconds)}` : `${spoken(seconds)} ago`;
            element.classList.toggle('wakeful-late', seconds <= 0 && element.classList.contains('wakeful-promised'));
        }
    };

    document.addEventListener('DOMContentLoaded', () => {
        const moments = Array.from(document.querySelectorAll('time.wakeful-moment'), element => ({
            element,
            // Milliseconds from the start of this page to the moment.
            ahead: Date.parse(element.dateTime) - Date.parse(element.dataset.now),
        }));
        if (moments.length) {
            setInterval(() => refresh(moments), 1000);
        }
    });
}
