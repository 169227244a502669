/* A profile function in C: it gets the events of `sys.setprofile`, and changes nothing in the program.
   The functions are those of CPython's stable interface, so that no headers are needed. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void Object;
typedef int Profile(Object *, Object *, int, Object *);

void PyEval_SetProfile(Profile *, Object *);
void PyErr_Fetch(Object **, Object **, Object **);
void PyErr_Restore(Object *, Object *, Object *);
void PyErr_Clear(void);
Object *PyDict_GetItemString(Object *, const char *);
Object *PyFrame_GetCode(Object *);
Object *PyObject_GetAttrString(Object *, const char *);
const char *PyUnicode_AsUTF8AndSize(Object *, intptr_t *);
void Py_IncRef(Object *);
void Py_DecRef(Object *);

/* Events of CPython's, and their numbers in logs. */
enum { CALL = 0, RETURN = 3, C_CALL = 4, C_EXCEPTION = 5, C_RETURN = 6 };
static const int kinds[] = {0, -1, -1, 1, 2, 4, 3};

struct call {
    Object *frame;
    uint64_t number;
    int is_c;
};

struct log {
    struct log *next;
    uint64_t *events;
    size_t len, room;
    struct call *open;
    size_t depth, most;
};

struct function {
    uint64_t hash;
    Object *code;
    char *name;
    Object *module;
};

enum { MOST = 1 << 20 };

static __thread struct log *own;
static struct log *first, *last;
static struct function functions[MOST];
static uint32_t places[2 * MOST];
static uint32_t count;
static uint64_t left_out;

static void *more(void *old, size_t len, size_t *room, size_t size) {
    if (len < *room) return old;
    *room = 2 * *room + 1024;
    void *made = realloc(old, *room * size);
    if (!made) abort();
    return made;
}

/* Returns the number of a code object, or of a name without one. */
static uint32_t number(Object *code, const char *name, int *is_new) {
    uint64_t hash = (uintptr_t)code >> 4;
    for (const char *at = name; *at; at++) hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
    hash *= 0x9e3779b97f4a7c15;
    for (uint64_t at = hash >> 43;; at = (at + 1) % (2 * MOST)) {
        if (!places[at]) {
            if (count + 1 >= MOST) abort();
            functions[count] = (struct function){hash, code, strdup(name), NULL};
            places[at] = ++count;
            *is_new = 1;
            return count - 1;
        }
        struct function *it = &functions[places[at] - 1];
        if (it->hash == hash && it->code == code && !strcmp(it->name, name)) return places[at] - 1;
    }
}

static void write_event(uint64_t number, int kind) {
    own->events = more(own->events, own->len, &own->room, sizeof *own->events);
    own->events[own->len++] = number << 3 | kind;
}

static int profile(Object *, Object *frame, int what, Object *arg) {
    if (what < 0 || what > 6 || kinds[what] < 0) return 0;
    int is_c = what >= C_CALL, is_new = 0;
    uint32_t at;
    Object *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (is_c) {
        Object *name = PyObject_GetAttrString(arg, "__name__");
        const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
        at = number(NULL, text ? text : "?", &is_new);
        if (name) Py_DecRef(name);
    } else {
        Object *code = PyFrame_GetCode(frame);
        at = number(code, "", &is_new);
        if (is_new) {
            /* No other object gets its address. */
            Py_IncRef(code);
            Object *globals = PyObject_GetAttrString(frame, "f_globals");
            Object *module = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
            if (module) Py_IncRef(module);
            functions[at].module = module;
            if (globals) Py_DecRef(globals);
        }
        Py_DecRef(code);
    }
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
    if (!own) {
        own = calloc(1, sizeof *own);
        if (!own) abort();
        *(last ? &last->next : &first) = own;
        last = own;
    }
    if (what == CALL || what == C_CALL) {
        own->open = more(own->open, own->depth, &own->most, sizeof *own->open);
        own->open[own->depth++] = (struct call){frame, at, is_c};
    } else {
        size_t depth = own->depth;
        for (; depth; depth--) {
            struct call *it = &own->open[depth - 1];
            if (it->frame == frame && it->number == at && it->is_c == is_c) break;
        }
        if (!depth) {
            /* Calls around all others have begun before the profile function was set. */
            left_out += own->depth != 0;
            return 0;
        }
        for (; own->depth > depth; own->depth--) {
            struct call *it = &own->open[own->depth - 1];
            write_event(it->number, it->is_c ? 4 : 1);
        }
        own->depth--;
    }
    write_event(at, kinds[what]);
    return 0;
}

/* Sets the profile function of this thread; with a frame, its call is the first event. */
void reference_begin(Object *frame) {
    PyEval_SetProfile(profile, NULL);
    if (frame) profile(NULL, frame, CALL, NULL);
}

uint32_t reference_count(void) { return count; }
uint64_t reference_left_out(void) { return left_out; }
Object *reference_code(uint32_t at) { return functions[at].code; }
const char *reference_name(uint32_t at) { return functions[at].name; }
Object *reference_module(uint32_t at) { return functions[at].module; }
struct log *reference_log(struct log *before) { return before ? before->next : first; }
uint64_t *reference_events(struct log *log) { return log->events; }
size_t reference_len(struct log *log) { return log->len; }
