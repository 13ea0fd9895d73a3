import java.util.LinkedHashMap;
import java.util.Map;

final class Joins {
    private Joins() { }

    static Map<String, Oracle.Twin> twins() {
        return new LinkedHashMap<>();
    }
}
