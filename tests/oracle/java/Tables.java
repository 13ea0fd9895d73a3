import java.util.LinkedHashMap;
import java.util.Map;

final class Tables {
    private Tables() { }

    static Map<String, Oracle.Twin> twins() {
        return new LinkedHashMap<>();
    }
}
