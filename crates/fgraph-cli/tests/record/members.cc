// Calls with addresses and references of classes with bases.
#include <cstdio>
#include <string>

#define TRACED __attribute__((noinline, noipa))

struct Id {
    int id = 0;
};

struct Named {
    std::string name;
    const char *nick = nullptr;
};

class Shape : public Id, public Named {
public:
    Shape(int id, const char *name, double size) : size(size) { this->id = id; this->name = name; }
    TRACED long area(int scale);
    double size;
    Shape *inner = nullptr;
    static int count;
};

int Shape::count = 0;
static volatile long total;

TRACED long Shape::area(int scale)
{
    total += scale;
    return static_cast<long>(size * scale);
}

TRACED void look(const Shape &shape, Shape *&place)
{
    total += shape.id + place->id;
}

int main()
{
    Shape small(4, "small", 1.5), large(5, "a name that is longer than the others", 9);
    Shape *place = &small;
    large.inner = &small;
    large.nick = "big";
    long area = large.area(2) + small.area(3);
    look(large, place);
    std::printf("%ld\n", area);
    return 0;
}
