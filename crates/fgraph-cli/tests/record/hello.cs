using System;
using System.Collections.Generic;

class Hello {
    static void Main() {
        var sums = new Dictionary<string, int>();
        for (int i = 0; i < 5000; i++) {
            string key = "k" + i % 37;
            int sum;
            sums.TryGetValue(key, out sum);
            sums[key] = sum + i;
        }
        int total = 0;
        foreach (int sum in sums.Values) total += sum;
        Console.WriteLine(total);
        try {
            int.Parse("x");
        } catch (FormatException error) {
            Console.WriteLine(error.GetType().Name);
        }
        GC.Collect();
    }
}
