/* Draws the topology: a box for each node with its devices, and the links that the plan's tensors use. */
#include "show/draw_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "planner/given/cluster.h"

#define BOX_PX 168.0
#define HEAD_PX 22.0
#define LINE_PX 16.0
#define LINES_MAX 8u /* devices of one node that are named */
#define NODES_FEW 8u /* with fewer nodes in use, nodes that are not used are drawn too */
#define LINKS_SAID_ONCE                                                                                      \
    3u /* with more links of equal figures the figures are written once, because they would overlap */
#define BOXES_MAX 96u /* most nodes that are drawn */
#define SMALL_PX 76.0 /* width of a box when there are many */
#define LAYOUT_BYTES_MAX (1u << 20)
#define POINTS_MAX 64u /* most points of a curve of Graphviz */

struct box {
    const char *name;           /* name of the node */
    uint32_t ranks, out;        /* number of devices in use and left out */
    double x, y, width, height; /* px; x and y are the upper left corner */
};

struct topology {
    const struct draw_input *input;
    uint32_t count;
    struct box *boxes;       /* boxes in order of first use, then boxes of left-out devices */
    uint32_t *box_of;        /* [ranks] box of each rank */
    uint32_t hidden_devices; /* number of left-out devices on nodes that are not drawn */
    uint8_t
        *linked; /* [count × count] whether two boxes are linked, upper triangle; NULL with too many nodes */
    double height;
};

static uint32_t box_find(struct topology *t, const char *name)
{
    for (uint32_t i = t->count; i-- > 0;)
        if (strcmp(t->boxes[i].name, name) == 0)
            return i;
    t->boxes[t->count] = (struct box){.name = name};
    return t->count++;
}

/* Counts a left-out device at the box of its node, and makes a box for it as long as there are few. */
static void left_out_add(struct topology *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (strcmp(t->boxes[i].name, name) == 0) {
            t->boxes[i].out++;
            return;
        }
    }
    if (t->count < NODES_FEW)
        t->boxes[box_find(t, name)].out++;
    else
        t->hidden_devices++;
}

static const char *node_of_device(const struct draw_input *input, const char *device)
{
    uint32_t index = input->cluster ? cluster_device_find(input->cluster, device) : UINT32_MAX;
    return index == UINT32_MAX ? NULL : cluster_device_node(input->cluster, index);
}

static bool carries_tensors(const struct plan_rank *rank, const struct instr *x)
{
    int32_t slot = x->slot_in >= 0 ? x->slot_in : x->slot_out;
    if (x->queue != QUEUE_GROUP || slot < 0 || (uint32_t)slot >= rank->slot_count)
        return false;
    switch (rank->slots[slot].kind) {
    case SLOT_STEP_SCALARS:
    case SLOT_NORM_SCALAR:
    case SLOT_TOKEN:
    case SLOT_BARRIER:
        return false;
    default:
        return true;
    }
}

static void link_mark(struct topology *t, uint32_t a, uint32_t b)
{
    uint32_t from = t->box_of[a], to = t->box_of[b];
    if (from != to)
        t->linked[(size_t)(from < to ? from : to) * t->count + (from < to ? to : from)] = 1;
}

static void links_find(struct topology *t)
{
    const struct plan *plan = t->input->plan;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *p = &plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < p->instr_count; i++) {
            const struct instr *x = &p->instrs[i];
            if (x->peer >= 0 && x->queue != QUEUE_GROUP)
                link_mark(t, r, (uint32_t)x->peer);
            if (!carries_tensors(&plan->ranks[r], x))
                continue;
            const struct plan_group *g = &plan->groups[x->group];
            for (uint32_t k = 0; k + 1 < g->rank_count; k++)
                link_mark(t, g->ranks[k], g->ranks[k + 1]);
        }
    }
}

static int topology_init(struct topology *t, const struct draw_input *input, struct err *err)
{
    const struct plan *plan = input->plan;
    uint32_t most = plan->rank_count + (input->answer ? input->answer->left_out_count : 0);
    *t = (struct topology){.input = input};
    t->boxes = calloc((size_t)most + 1, sizeof(*t->boxes));
    t->box_of = calloc((size_t)plan->rank_count + 1, sizeof(*t->box_of));
    if (!t->boxes || !t->box_of)
        return err_set(err, ERR_NOMEM, "drawing: out of memory for %u devices", most);
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        t->box_of[r] = box_find(t, plan->ranks[r].node ? plan->ranks[r].node : "");
        t->boxes[t->box_of[r]].ranks++;
    }
    for (uint32_t i = 0; input->answer && i < input->answer->left_out_count; i++) {
        const char *node = node_of_device(input, input->answer->left_out[i].device);
        if (node)
            left_out_add(t, node);
    }
    if (t->count <= DRAW_NODES_MAX) {
        t->linked = calloc((size_t)t->count * t->count + 1, 1);
        if (!t->linked)
            return err_set(err, ERR_NOMEM, "drawing: out of memory for %u nodes", t->count);
        links_find(t);
    }
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t lines = t->boxes[i].ranks + t->boxes[i].out;
        bool small = t->count > DRAW_NODES_MAX;
        t->boxes[i].width = small ? SMALL_PX : BOX_PX;
        t->boxes[i].height = small ? 34 : HEAD_PX + LINE_PX * fmin(lines, LINES_MAX + 1) + 6;
    }
    return 0;
}

static void topology_fini(struct topology *t)
{
    free(t->boxes);
    free(t->box_of);
    free(t->linked);
}

/* --- Graphviz --- */

int draw_dot(const struct draw_input *input, struct buf *out, struct err *err)
{
    struct topology t;
    struct pen pen = {.out = out, .err = err};
    int result = topology_init(&t, input, err);
    if (result == 0 && t.linked) {
        pen_put(&pen, "graph motley {\n rankdir=LR; nodesep=0.35; ranksep=1.5; splines=true;\n"
                      " node [shape=box, fixedsize=true, label=\"\"];\n");
        for (uint32_t i = 0; i < t.count; i++)
            pen_put(&pen, " n%u [width=%.3f, height=%.3f];\n", i, t.boxes[i].width / 72,
                    t.boxes[i].height / 72);
        for (uint32_t a = 0; a < t.count; a++)
            for (uint32_t b = a + 1; b < t.count; b++)
                if (t.linked[(size_t)a * t.count + b])
                    pen_put(&pen, " n%u -- n%u;\n", a, b);
        pen_put(&pen, "}\n");
        result = pen.failed ? -1 : 0;
    }
    topology_fini(&t);
    return result;
}

struct curve { /* a curve that Graphviz drew between two boxes, in px */
    uint32_t a, b, count;
    double x[POINTS_MAX], y[POINTS_MAX];
};

struct layout {
    double scale, height_in, x, y; /* conversion from inches to px */
    uint32_t placed, curve_count, curve_room;
    struct curve *curves;
};

/* Reads the next word of a line as a number and moves *at behind it. */
static bool draw_topology_number(const char **at, double *value)
{
    char *end;
    *value = strtod(*at, &end);
    bool good = end != *at && isfinite(*value) && fabs(*value) < 1e6;
    *at = end;
    return good;
}

static bool node_number(const char **at, uint32_t count, uint32_t *value)
{
    char *end;
    *at += strspn(*at, " ");
    if (**at != 'n')
        return false;
    unsigned long got = strtoul(*at + 1, &end, 10);
    bool good = end != *at + 1 && got < count;
    *value = (uint32_t)got;
    *at = end;
    return good;
}

static bool read_edge(const char *line, const struct topology *t, struct layout *layout)
{
    struct curve curve = {0};
    double points;
    if (layout->curve_count >= layout->curve_room || !node_number(&line, t->count, &curve.a) ||
        !node_number(&line, t->count, &curve.b) || !draw_topology_number(&line, &points) || points < 2 ||
        points > POINTS_MAX)
        return false;
    curve.count = (uint32_t)points;
    for (uint32_t k = 0; k < curve.count; k++) {
        if (!draw_topology_number(&line, &curve.x[k]) || !draw_topology_number(&line, &curve.y[k]))
            return false;
        curve.x[k] = layout->x + curve.x[k] * layout->scale;
        curve.y[k] = layout->y + (layout->height_in - curve.y[k]) * layout->scale;
    }
    layout->curves[layout->curve_count++] = curve;
    return true;
}

static bool read_node(const char *line, struct topology *t, struct layout *layout)
{
    uint32_t i;
    double x, y;
    if (!node_number(&line, t->count, &i) || !draw_topology_number(&line, &x) ||
        !draw_topology_number(&line, &y))
        return false;
    t->boxes[i].x = layout->x + x * layout->scale - t->boxes[i].width / 2;
    t->boxes[i].y = layout->y + (layout->height_in - y) * layout->scale - t->boxes[i].height / 2;
    layout->placed++;
    return true;
}

/* Takes positions and curves from the answer of `dot -Tplain`; false when it cannot be read or is too wide.
 */
static bool layout_read(struct topology *t, struct layout *layout, const char *text, double top)
{
    double width_in = 0, factor;
    bool good = text && strnlen(text, LAYOUT_BYTES_MAX) < LAYOUT_BYTES_MAX;
    *layout = (struct layout){.scale = 72, .x = DRAW_MARGIN, .y = top, .curve_room = t->count * t->count};
    layout->curves = good ? calloc((size_t)layout->curve_room + 1, sizeof(*layout->curves)) : NULL;
    for (good = good && layout->curves; good && *text; text += strcspn(text, "\n"), text += *text == '\n') {
        if (strncmp(text, "graph ", 6) == 0) {
            const char *line = text + 6;
            good = draw_topology_number(&line, &factor) && draw_topology_number(&line, &width_in) &&
                   draw_topology_number(&line, &layout->height_in) &&
                   width_in * 72 <= DRAW_WIDTH - 2 * DRAW_MARGIN && layout->height_in * 72 <= 900;
        } else if (strncmp(text, "node ", 5) == 0) {
            good = read_node(text + 5, t, layout);
        } else if (strncmp(text, "edge ", 5) == 0) {
            good = read_edge(text + 5, t, layout);
        } else if (strncmp(text, "stop", 4) == 0) {
            break;
        }
    }
    good = good && width_in > 0 && layout->placed == t->count;
    if (good)
        t->height = layout->height_in * 72;
    return good;
}

/* --- our own layout --- */

/* Places the boxes in rows, in the order of the plan. Every other row runs backwards, so that neighbours stay
 * neighbours. */
static void rows_place(struct topology *t, double top)
{
    bool small = t->count > DRAW_NODES_MAX;
    uint32_t shown = t->count < BOXES_MAX ? t->count : BOXES_MAX;
    double wide = small ? SMALL_PX : BOX_PX, space = small ? 8 : 118;
    uint32_t columns = (uint32_t)((DRAW_WIDTH - 2 * DRAW_MARGIN + space) / (wide + space));
    double y = top, tallest = 0;
    for (uint32_t i = 0; i < shown; i++) {
        struct box *box = &t->boxes[i];
        uint32_t column = i % columns;
        if (i > 0 && column == 0) {
            y += tallest + (small ? 8 : 46);
            tallest = 0;
        }
        if (i / columns % 2 == 1)
            column = columns - 1 - column;
        box->x = DRAW_MARGIN + column * (wide + space);
        box->y = y;
        tallest = fmax(tallest, box->height);
    }
    t->height = y + tallest - top;
}

/* --- drawing --- */

struct figures { /* figures of a link */
    double latency_s, bytes_per_s;
    bool emulated, assumed;
};

/* Finds the figures of the link between two nodes' first devices; false when they are unknown. */
static bool link_figures(const struct topology *t, uint32_t a, uint32_t b, struct figures *f)
{
    const struct plan *plan = t->input->plan;
    uint32_t from = UINT32_MAX, to = UINT32_MAX;
    if (!t->input->cluster)
        return false;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (from == UINT32_MAX && t->box_of[r] == a)
            from = cluster_device_find(t->input->cluster, plan->ranks[r].device);
        if (to == UINT32_MAX && t->box_of[r] == b)
            to = cluster_device_find(t->input->cluster, plan->ranks[r].device);
    }
    if (from == UINT32_MAX || to == UINT32_MAX)
        return false;
    struct cluster_link link = cluster_link(t->input->cluster, from, to);
    *f = (struct figures){link.latency_s, link.bytes_per_s, link.emulated, link.origin == ORIGIN_ESTIMATED};
    return true;
}

static const char *figures_note(const struct figures *f)
{
    return f->emulated ? ", emulated" : f->assumed ? ", assumed" : "";
}

/* Whether so many links are drawn, all with the same figures, that the figures are written once. */
static bool links_equal(const struct topology *t, struct figures *f)
{
    uint32_t links = 0;
    for (uint32_t a = 0; t->linked && a < t->count; a++) {
        for (uint32_t b = a + 1; b < t->count; b++) {
            struct figures own;
            if (!t->linked[(size_t)a * t->count + b])
                continue;
            if (!link_figures(t, a, b, &own))
                return false;
            if (links++ == 0)
                *f = own;
            else if (own.latency_s != f->latency_s || own.bytes_per_s != f->bytes_per_s ||
                     own.emulated != f->emulated || own.assumed != f->assumed)
                return false;
        }
    }
    return links >= LINKS_SAID_ONCE;
}

static void link_draw(struct pen *pen, const struct topology *t, uint32_t a, uint32_t b,
                      const struct curve *curve, bool told)
{
    const struct box *p = &t->boxes[a], *q = &t->boxes[b];
    struct figures f = {0};
    double mid_x, mid_y;
    bool known = link_figures(t, a, b, &f);
    double wide = known ? fmin(5, fmax(1.2, log10(f.bytes_per_s) - 6.5))
                        : 1.5; /* 100 MB/s gives 1.5 px, 10 GB/s gives 3.5 px */
    pen_put(pen, "<path class=\"link\" stroke-width=\"%.1f\"%s d=\"", wide,
            f.emulated ? " stroke-dasharray=\"5 4\"" : "");
    if (curve && curve->count >= 4 && curve->count % 3 == 1) {
        pen_put(pen, "M%.1f %.1fC", curve->x[0], curve->y[0]);
        for (uint32_t k = 1; k < curve->count; k++)
            pen_put(pen, "%.1f %.1f ", curve->x[k], curve->y[k]);
        mid_x = (curve->x[curve->count / 2] + curve->x[(curve->count - 1) / 2]) / 2;
        mid_y = (curve->y[curve->count / 2] + curve->y[(curve->count - 1) / 2]) / 2;
    } else {
        double x0 = p->x + p->width / 2, y0 = p->y + p->height / 2;
        double x1 = q->x + q->width / 2, y1 = q->y + q->height / 2;
        bool neighbours = fabs(y1 - y0) < 40 && fabs(x1 - x0) < BOX_PX * 1.9;
        double bow = neighbours ? 0 : fabs(y1 - y0) < 40 ? -p->height / 2 - 30 : 0;
        mid_x = (x0 + x1) / 2;
        mid_y = (y0 + y1) / 2 + bow / 2;
        pen_put(pen, "M%.1f %.1fQ%.1f %.1f %.1f %.1f", x0, y0, (x0 + x1) / 2, (y0 + y1) / 2 + bow, x1, y1);
    }
    pen_put(pen, "\"/>\n");
    if (known && !told) {
        char r[32], l[32];
        pen_put(
            pen,
            "<text class=\"m lk\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text><text class=\"m lk\" "
            "text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s%s</text>\n",
            mid_x, mid_y - 5, units_rate(r, f.bytes_per_s), mid_x, mid_y + 13, units_seconds(l, f.latency_s),
            figures_note(&f));
    }
}

static const char *short_name(const char *device)
{
    const char *slash = strrchr(device, '/');
    return slash && slash[1] ? slash + 1 : device;
}

static void device_line(struct pen *pen, const struct box *box, uint32_t line, const char *name,
                        const char *like, const char *what, bool out)
{
    double y = box->y + HEAD_PX + LINE_PX * line;
    pen_put(pen,
            "<g%s><rect class=\"dev\" x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" rx=\"2\"/><text "
            "class=\"t\" x=\"%.1f\" y=\"%.1f\">",
            out ? " class=\"out\"" : "", box->x + 5, y, box->width - 10, LINE_PX - 3, box->x + 9, y + 10);
    pen_text(pen, short_name(name), 12);
    if (like)
        pen_put(pen, " · %s", like);
    pen_put(pen, "</text><text class=\"m\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text></g>\n",
            box->x + box->width - 9, y + 10, what);
}

static void devices_draw(struct pen *pen, const struct topology *t, uint32_t index)
{
    const struct draw_input *input = t->input;
    const struct box *box = &t->boxes[index];
    uint32_t line = 0;
    for (uint32_t r = 0; r < input->plan->rank_count && line < LINES_MAX; r++) {
        char what[48];
        const struct plan_rank *rank = &input->plan->ranks[r];
        if (t->box_of[r] != index)
            continue;
        snprintf(what, sizeof(what), "rank %u", r);
        device_line(pen, box, line++, rank->device ? rank->device : "", draw_like(input, r), what, false);
    }
    for (uint32_t i = 0; input->answer && i < input->answer->left_out_count && line < LINES_MAX; i++) {
        const char *node = node_of_device(input, input->answer->left_out[i].device);
        if (node && strcmp(node, box->name) == 0)
            device_line(pen, box, line++, input->answer->left_out[i].device, input->answer->left_out[i].like,
                        "left out", true);
    }
    if (box->ranks + box->out > line)
        pen_put(pen, "<text class=\"m\" x=\"%.1f\" y=\"%.1f\">… %u more</text>\n", box->x + 9,
                box->y + HEAD_PX + LINE_PX * line + 10, box->ranks + box->out - line);
}

static void box_draw(struct pen *pen, const struct topology *t, uint32_t index)
{
    const struct box *box = &t->boxes[index];
    bool small = t->count > DRAW_NODES_MAX;
    pen_put(pen,
            "<rect class=\"box\" x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.1f\" rx=\"5\"/><text "
            "class=\"t\"%s x=\"%.1f\" y=\"%.1f\">",
            box->x, box->y, box->width, box->height, small ? "" : " font-weight=\"600\"", box->x + 7,
            box->y + 14);
    pen_text(pen, box->name, small ? 10 : 22);
    pen_put(pen, "</text>\n");
    if (small)
        pen_put(pen, "<text class=\"m\" x=\"%.1f\" y=\"%.1f\">%u of %u</text>\n", box->x + 7, box->y + 28,
                box->ranks, box->ranks + box->out);
    else
        devices_draw(pen, t, index);
}

double draw_topology(struct pen *pen, const struct draw_input *input, double y)
{
    struct topology t;
    struct layout layout = {0};
    if (topology_init(&t, input, pen->err) < 0) {
        pen->failed = true;
        topology_fini(&t);
        return y;
    }
    struct figures each;
    char rate[32], latency[32];
    bool told = links_equal(&t, &each);
    pen_put(pen,
            "<text class=\"t s\" x=\"%.0f\" y=\"%.0f\">Nodes, devices and the links in "
            "use</text>\n",
            DRAW_MARGIN, y + 8);
    if (told)
        pen_put(pen, "<text class=\"m\" x=\"%.0f\" y=\"%.0f\">every link: %s, %s%s</text>\n",
                DRAW_MARGIN + 270, y + 8, units_rate(rate, each.bytes_per_s),
                units_seconds(latency, each.latency_s), figures_note(&each));
    double top = y + 22;
    bool placed = t.linked && layout_read(&t, &layout, input->layout, top);
    if (!placed)
        rows_place(&t, top);
    for (uint32_t a = 0; t.linked && a < t.count; a++) {
        for (uint32_t b = a + 1; b < t.count; b++) {
            const struct curve *curve = NULL;
            if (!t.linked[(size_t)a * t.count + b])
                continue;
            for (uint32_t k = 0; placed && k < layout.curve_count; k++)
                if (layout.curves[k].a == a && layout.curves[k].b == b)
                    curve = &layout.curves[k];
            link_draw(pen, &t, a, b, curve, told);
        }
    }
    for (uint32_t i = 0; i < t.count && i < BOXES_MAX; i++)
        box_draw(pen, &t, i);
    y = top + t.height + 16;
    if (t.hidden_devices > 0) {
        pen_put(pen,
                "<text class=\"m\" x=\"%.0f\" y=\"%.0f\">%u more device%s left out, on other nodes</text>\n",
                DRAW_MARGIN, y, t.hidden_devices, t.hidden_devices == 1 ? " is" : "s are");
        y += 14;
    }
    if (!t.linked)
        pen_put(pen,
                "<text class=\"m\" x=\"%.0f\" y=\"%.0f\">%u nodes (devices in use of all known here); links "
                "are not drawn for more than %u nodes%s</text>\n",
                DRAW_MARGIN, y, t.count, DRAW_NODES_MAX,
                t.count > BOXES_MAX ? "; the first ones are shown" : "");
    free(layout.curves);
    topology_fini(&t);
    return y + (t.linked ? 0 : 12);
}
